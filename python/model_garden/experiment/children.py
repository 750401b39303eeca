"""Measured processes: started afresh or forked, heard over a pipe, and never left behind.

Each has a process group of its own, so that all it started ends with it; the kernel ends it if this process is killed. What the pieces print goes to
a file and is shown only if the process fails without a word.
"""
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time

from .counters import own_files
from .measured import Plan, measure
from .stages import settle_after_fork

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TAIL = 2000


class Child:
    """One measured process and what it has told."""

    def __init__(self, plan, source, start):
        self.plan = plan
        self.messages = []
        self.heard_at = time.monotonic()
        self.is_done = False
        self.code = None
        self._rest = b""
        self._output = tempfile.TemporaryFile()
        reading, writing = os.pipe()
        try:
            if start == "fork":
                self.pid = self._fork(source, reading, writing)
            else:
                self.pid = self._start_afresh(source, writing, start == "spawn")
        except BaseException:
            os.close(reading)
            self._output.close()
            raise
        finally:
            os.close(writing)
        self.pipe = reading

    def _fork(self, source, reading, writing):
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
            # The test of a program, or a notebook, may have hooks for signals that mean nothing here.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(self._output.fileno(), 1)
            os.dup2(self._output.fileno(), 2)
            settle_after_fork(parent)
            own_files()
            work(self.plan, source, writing)
            code = 0
        finally:
            leave(code)

    def _start_afresh(self, source, writing, is_pickled):
        order = pickle.dumps((vars(self.plan), pickle_pieces(source) if is_pickled else source, is_pickled))
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE_FOLDER, environment.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "model_garden.experiment", "--child", str(writing)]
        if is_pickled:
            # What is unpickled may need modules that only this process knows the way to.
            environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], *filter(None, sys.path)])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._output, stderr=self._output, pass_fds=[writing], env=environment, start_new_session=True
        )
        try:
            self._process.stdin.write(order)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended, and its output says why
        return self._process.pid

    def hear(self):
        """Reads what has come; returns the new messages, and notes when there will be no more."""
        data = os.read(self.pipe, 1 << 16)
        self.heard_at = time.monotonic()
        if not data:
            self._reap()
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        new = [json.loads(line) for line in lines]
        self.messages += new
        return new

    def _reap(self):
        os.close(self.pipe)
        self.is_done = True
        _, status = os.waitpid(self.pid, 0)
        self.code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if hasattr(self, "_process"):
            self._process.returncode = self.code
        # What it started and did not end.
        self._kill_group()

    def kill(self):
        """Ends it and everything that it started."""
        if not self.is_done:
            self._kill_group()
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._reap()

    def _kill_group(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def has_failed(self):
        """Whether it told of an error, or ended without being done."""
        return any("error" in message for message in self.messages) or not any("done" in message for message in self.messages)

    def last_words(self):
        """The end of what it printed."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - TAIL))
        return self._output.read().decode("utf-8", "replace").strip()

    def close(self):
        """Lets go of its output."""
        self._output.close()


class PickleError(Exception):
    """A piece cannot be copied to another process; the text names it."""


def pickle_pieces(pieces):
    """Every piece as a pickle of its own, so that the one that cannot be pickled is known."""
    pickled = {}
    for name, piece in vars(pieces).items():
        try:
            pickled[name] = pickle.dumps(piece)
        except Exception as error:
            kind = type(piece).__qualname__
            raise PickleError(
                f"the {name} ({kind}) cannot be copied into a fresh process: {type(error).__name__}: {error}\n"
                "hint: give a function that makes the pieces instead: `model_garden.bisect('module:function')`"
            ) from None
    return pickled


def leave(code):
    """Ends this process at once: threads that the pieces left behind, or a standard output that they closed, must not keep it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
    finally:
        os._exit(code)


def work(plan, source, writing):
    """The life of a measured process."""
    pipe = os.fdopen(writing, "wb", buffering=0)

    def tell(message):
        pipe.write(json.dumps(message).encode() + b"\n")

    measure(plan, source, tell)
    tell({"done": True})
    pipe.close()


def child_main(writing):
    """The life of a process that was started afresh: its order comes from standard input."""
    from .counters import end_with_parent
    from .pieces import Pieces

    end_with_parent(os.getppid())
    values, source, is_pickled = pickle.loads(sys.stdin.buffer.read())
    if is_pickled:
        source = Pieces(**{name: pickle.loads(data) for name, data in source.items()})
    work(Plan(**values), source, writing)


def run_all(plans, source, start, at_once, patience, on_message, ends_with_failure=False):
    """Runs the plans, so many at once, and returns their processes in the same order. None of them is left when this returns or raises.

    With `ends_with_failure`, plans that have not begun when one of them fails are left out.
    """
    waiting = list(enumerate(plans))
    done = {}
    running = {}
    chooser = selectors.DefaultSelector()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                place, plan = waiting.pop(0)
                child = Child(plan, source, start)
                running[child.pipe] = (place, child)
                done[place] = child
                chooser.register(child.pipe, selectors.EVENT_READ)
            for key, _ in chooser.select(timeout=1.0):
                place, child = running[key.fd]
                for message in child.hear():
                    on_message(child.plan, message)
                if child.is_done:
                    # The number of the pipe is closed, and may be the next one's already.
                    chooser.unregister(key.fd)
                    del running[key.fd]
                    if ends_with_failure and child.has_failed():
                        waiting.clear()
            for pipe, (_, child) in list(running.items()):
                if time.monotonic() - child.heard_at > patience:
                    child.messages.append({"error": {"stage": child.plan.stages[-1], "kind": "silent", "text": f"nothing was heard for {patience:.0f} s"}})
                    chooser.unregister(pipe)
                    del running[pipe]
                    child.kill()
                    if ends_with_failure:
                        waiting.clear()
        return [done[place] for place in sorted(done)]
    finally:
        for _, child in running.values():
            child.kill()
            child.close()
        chooser.close()
