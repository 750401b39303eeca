"""Starts one measured process, hears it to its end, and never leaves it behind.

It has a process group of its own, so that all it started ends with it, and the kernel ends it if this process is killed. What it prints goes to a file and
is shown if it fails.
"""
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

from ..experiment.counters import own_files
from ..experiment.stages import settle_after_fork
from .run import Trouble, speak

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Tells a program that is run again for one of its functions that it is.
INSIDE = "MODEL_GARDEN_TRIAL"
TAIL = 2000
# How often a silent run is looked at.
GLANCE_S = 0.5


def carry_out(order, start, environment, patience):
    """Makes one run and returns its last message. Raises `Trouble` if it fails; nothing of it is left when this returns or raises."""
    with tempfile.TemporaryFile() as output:
        reading, writing = os.pipe()
        child = None
        try:
            if start == "fork":
                child = _Forked(order, reading, writing, output)
            else:
                child = _Fresh(order, writing, output, environment)
            os.close(writing)
            writing = None
            last = _hear(reading, child, patience)
        finally:
            if writing is not None:
                os.close(writing)
            os.close(reading)
            code = None if child is None else child.end()
        if last is None:
            raise Trouble(_silence(code, output))
        if "error" in last:
            raise Trouble(last["error"], last["places"])
        return last


def _hear(reading, child, patience):
    """The message that ends the run; None if it ended without one.

    Not until the pipe is closed: what the loop has forked may hold it open for ever.
    """
    rest, heard_at = b"", time.monotonic()
    while True:
        if not select.select([reading], [], [], GLANCE_S)[0]:
            if child.has_ended():
                return None
            if time.monotonic() - heard_at > patience:
                raise Trouble(f"no step was taken for {patience:.0f} s\nhint: raise `patience` if a step may take that long")
            continue
        data = os.read(reading, 1 << 16)
        if not data:
            return None
        heard_at = time.monotonic()
        *lines, rest = (rest + data).split(b"\n")
        for message in map(json.loads, lines):
            if "done" in message or "error" in message:
                return message


def _silence(code, output):
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - TAIL))
    said = output.read().decode("utf-8", "replace").strip()
    hint = "\nhint: SIGKILL often comes from the kernel when memory runs out: fewer `steps`, or a smaller loop" if code == -signal.SIGKILL else ""
    return f"the run ended without a word ({how})" + (f"; the end of what it printed:\n{said}" if said else "") + hint


class _Fresh:
    """A run in a new interpreter."""

    def __init__(self, order, writing, output, environment):
        variables = {**os.environ, **environment, INSIDE: "1"}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE_FOLDER, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, *_flags(), "-m", "model_garden.trial", "--child", str(writing)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=[writing], env=variables, start_new_session=True
        )
        try:
            with self.process.stdin as stdin:
                stdin.write(json.dumps({**order, "parent": os.getpid(), "path": sys.path}).encode())
        except BrokenPipeError:
            pass  # it has ended, and its output says why
        except BaseException:
            self.end()
            raise

    def has_ended(self):
        return self.process.poll() is not None

    def end(self):
        """Ends it and all that it started, and returns how it ended."""
        _kill_group(self.process.pid)
        return self.process.wait()


class _Forked:
    """A run in a copy of this process."""

    def __init__(self, order, reading, writing, output):
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.code = None
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setpgid(0, 0)
            os.close(reading)
            os.environ[INSIDE] = "1"
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            settle_after_fork(parent)
            own_files()
            speak(writing, order)
        finally:
            # Not through the exits of the program that this is a copy of.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def has_ended(self):
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = _code(status) if pid else None
        return self.code is not None

    def end(self):
        """Ends it and all that it started, and returns how it ended."""
        _kill_group(self.pid)
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)  # it may not have had the time to make its group
            self.code = _code(os.waitpid(self.pid, 0)[1])
        return self.code


def _code(status):
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _flags():
    """Switches of this interpreter that its fresh ones should have too."""
    return subprocess._args_from_interpreter_flags()
