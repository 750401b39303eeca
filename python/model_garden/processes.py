"""Processes that measure, for `bisect` and `audit`: forked or started afresh, heard over a pipe, and never left behind.

Each has a process group of its own, so that all it started ends with it; the kernel ends it if this process is killed. Its output goes to a file and is
shown only if the process fails without a message.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from .experiment.counters import end_with_parent, own_files

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TAIL = 2000
# A process that has closed its pipe is about to end: its own exit code tells more than ours.
GOODBYE_S = 10.0
GLANCE_S = 0.01


class MeasuredProcess:
    """A process and its output; `pipe` is the end to read its messages from."""

    def __init__(self, begin):
        """`begin(process, reading, writing)` starts it and returns its id."""
        self.code = None
        self.popen = None
        self.output = tempfile.TemporaryFile()
        reading, writing = os.pipe()
        try:
            self.pid = begin(self, reading, writing)
        except BaseException:
            os.close(reading)
            self.output.close()
            raise
        finally:
            os.close(writing)
        self.pipe = reading

    @classmethod
    def forked(cls, work):
        """A copy of this process, in which `work` is called with the pipe to write to."""
        return cls(lambda process, reading, writing: process._fork(work, reading, writing))

    @classmethod
    def fresh(cls, module, order, environment, flags=()):
        """A new interpreter that runs `python -m module --child PIPE` and reads its order from standard input."""
        return cls(lambda process, reading, writing: process._start(module, order, environment, flags, writing))

    def _fork(self, work, reading, writing):
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setpgid(0, 0)
            os.close(reading)
            # The program that this is a copy of may have hooks for signals that mean nothing here.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(self.output.fileno(), 1)
            os.dup2(self.output.fileno(), 2)
            settle_after_fork(parent)
            own_files()
            work(writing)
            code = 0
        finally:
            leave(code)

    def _start(self, module, order, environment, flags, writing):
        command = [sys.executable, *flags, "-m", module, "--child", str(writing)]
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self.output, stderr=self.output, pass_fds=[writing], env=environment, start_new_session=True
        )
        try:
            with self.popen.stdin as stdin:
                stdin.write(order)
        except BrokenPipeError:
            pass  # it has ended, and its output says why
        except BaseException:
            kill_group(self.popen.pid)
            self.popen.wait()
            raise
        return self.popen.pid

    def has_ended(self):
        """Whether it has ended; its exit code is known then."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._note(status)
        return self.code is not None

    def end(self, patience=0.0):
        """Ends it and all that it started, after it had this long to end by itself; returns its exit code, negative for a signal."""
        deadline = time.monotonic() + patience
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(GLANCE_S)
        kill_group(self.pid)
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)  # it may not have had the time to make its group
            self._note(os.waitpid(self.pid, 0)[1])
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None
        return self.code

    def _note(self, status):
        self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if self.popen is not None:
            self.popen.returncode = self.code

    def last_words(self):
        """The end of its output."""
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - TAIL))
        return self.output.read().decode("utf-8", "replace").strip()

    def close(self):
        """Lets go of its output."""
        self.output.close()


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def settle_after_fork(parent):
    """Makes a forked process safe: it ends with its parent, and never uses the parent's threads, which it does not have."""
    end_with_parent(parent)
    # OpenMP would wait for them for ever.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def leave(code):
    """Ends this process at once: threads that the user's code left behind, or a standard output that it closed, must not keep it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
    finally:
        os._exit(code)


def environment_with_us(more=()):
    """The environment of a fresh interpreter that finds this package, and these folders."""
    path = filter(None, [PACKAGE_FOLDER, os.environ.get("PYTHONPATH"), *more])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def uses_cuda():
    """Whether this process has begun to use a GPU, which does not survive a fork."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and torch.cuda.is_initialized()
    except Exception:
        return False


class Terminated(SystemExit):
    """SIGTERM came; the exit code is the one that shells give it."""


class ended_by_sigterm:
    """While processes run, SIGTERM ends them as Ctrl-C does. A handler of the program itself stays."""

    def __enter__(self):
        self.before = None
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self.before = signal.signal(signal.SIGTERM, self._interrupt)
        return self

    @staticmethod
    def _interrupt(number, frame):
        raise Terminated(128 + number)

    def __exit__(self, *raised):
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)


def write_json(document, path, indent=None):
    """Writes a document to a file, wholly or not at all."""
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=indent)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
