"""A `model-garden monitor` of our own, for a program that nobody watches yet.

It is a child in a session of its own, so that Ctrl-C reaches the program and not its watcher, and it ends by itself when the process
that it watches has gone. Every wait has an end: a watcher that does not start or finish costs seconds, never the run.
"""
import os
import sys
import threading
import time
import weakref

from .binary import find_binary
from .events import Channel
from .speech import warn_once

START_TIMEOUT_S = 5.0
# It judges the trace when it is told that the run has ended: milliseconds for short runs, seconds for millions of samples.
FINISH_TIMEOUT_S = 15.0
KILL_TIMEOUT_S = 2.0
# A socket's path may have no more than 107 letters.
LONGEST_FOLDER = 80
# What `monitor --plain` says when its verdict changes begins with this.
NEWS = "so far "

_monitors = weakref.WeakSet()


def _after_fork_in_child():
    """In a forked process the monitor is nobody's child: `Popen` must neither wait for it nor complain."""
    for monitor in list(_monitors):
        if monitor._process is not None:
            monitor._process.returncode = 0
            monitor._process = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Report:
    """What the monitor found: its full `text`, the first lines of it, the `verdict` in one word, and the `trace`."""

    def __init__(self, text, trace):
        self.text = text
        self.trace = trace

    @property
    def verdict(self):
        """`flat`, `sawtooth`, `settled`, `growing`, `leak`, `insufficient`, or None if there is no report."""
        word = self.text.split(None, 1)[0] if self.text.strip() else ""
        return word.lower() or None

    @property
    def summary(self):
        """The verdict in a sentence, and the memory at the start and end with its growth."""
        lines = self.text.splitlines()
        blank = next((index for index, line in enumerate(lines) if not line.strip()), len(lines))
        # A table of phases further down has a line that begins with `growth` too.
        numbers = [next((line for line in lines if line.startswith(label)), None) for label in ("  memory  ", "  growth  ")]
        return "\n".join(lines[:blank] + [line for line in numbers if line])


class OwnMonitor:
    """The child that watches this process. Construction raises if it cannot be started; nothing raises afterwards."""

    def __init__(self, trace=None, interval="1s", on_news=None):
        import tempfile

        self.interval_s = _seconds(interval)
        self.trace = os.path.abspath(os.fspath(trace)) if trace else default_trace()
        binary = find_binary()
        place = tempfile.gettempdir()
        self._folder = tempfile.mkdtemp(prefix="model-garden-", dir=place if len(place) < LONGEST_FOLDER else "/tmp")
        self._process = None
        self._owner = os.getpid()
        self._last_words = []
        try:
            self._start(binary, interval, on_news)
            self.channel = self._connect()
        except BaseException:
            self._end_now()
            self._tidy()
            raise
        _monitors.add(self)

    def _start(self, binary, interval, on_news):
        import subprocess

        command = [binary, "monitor", "--pid", str(os.getpid()), "--plain", "--interval", str(interval)]
        command += ["--channel", self._socket_path, "-o", self.trace]
        with open(self._report_path, "wb") as report:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=report, stderr=subprocess.PIPE, start_new_session=True
            )
        self._reader = threading.Thread(
            target=_read_talk, args=(self._process.stderr, self._last_words, on_news), name="model-garden-talk", daemon=True
        )
        self._reader.start()

    @property
    def _socket_path(self):
        return os.path.join(self._folder, "events")

    @property
    def _report_path(self):
        return os.path.join(self._folder, "report")

    def _connect(self):
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return Channel(self._socket_path)
            except OSError as error:
                if self._process.poll() is not None:
                    self._reader.join(KILL_TIMEOUT_S)
                    said = " ".join(self._last_words) or f"exit code {self._process.returncode}"
                    raise RuntimeError(f"the monitor ended at once: {said}") from None
                if time.monotonic() > end:
                    raise RuntimeError(f"the monitor did not listen within {START_TIMEOUT_S:.0f} s") from error
                time.sleep(0.005)

    def finish(self):
        """Tells the monitor that the run has ended and waits for its report; None in a forked process, or the second time."""
        if self._process is None or os.getpid() != self._owner:
            return None
        text = ""
        try:
            self.channel.tell(event="exit")
            text = self._wait_for_report()
        except Exception as error:
            warn_once("monitor", f"the monitor gave no report: {error}. The trace may still be judged with `model-garden diagnose`.")
        finally:
            self.channel.close()
            self._end_now()
            self._tidy()
        return Report(text, self.trace)

    def _wait_for_report(self):
        import subprocess

        try:
            self._process.wait(FINISH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it did not finish within {FINISH_TIMEOUT_S:.0f} s") from None
        self._reader.join(KILL_TIMEOUT_S)
        with open(self._report_path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if not text.strip():
            raise RuntimeError(" ".join(self._last_words[-6:]) or f"exit code {self._process.returncode}")
        return text

    def _end_now(self):
        """Ends the child if it still runs, politely at first."""
        import subprocess

        process, self._process = self._process, None
        if process is None:
            return
        for end in (process.terminate, process.kill):
            if process.poll() is not None:
                break
            try:
                end()
                process.wait(KILL_TIMEOUT_S)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self._reader.join(KILL_TIMEOUT_S)
        if not self._reader.is_alive():
            process.stderr.close()

    def _tidy(self):
        import shutil

        shutil.rmtree(self._folder, ignore_errors=True)


def _seconds(interval):
    """The time that the binary's `--interval` means; a second if it is written in another way."""
    text = str(interval)
    try:
        return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.rstrip("s"))
    except ValueError:
        return 1.0


def default_trace():
    """A trace in the present folder, or in the folder for temporary files if that cannot be written to."""
    import tempfile

    folder = os.getcwd()
    if not os.access(folder, os.W_OK):
        folder = tempfile.gettempdir()
    # Several programs may begin in the same second.
    return os.path.join(folder, f"model-garden-{int(time.time())}-{os.getpid()}.jsonl")


def _read_talk(stream, last_words, on_news):
    """Reads what the monitor says, so that it never waits for us; keeps the end of it and passes changes of the verdict on."""
    try:
        for line in iter(stream.readline, b""):
            text = line.decode("utf-8", "replace").rstrip()
            last_words.append(text.strip())
            del last_words[:-20]
            if on_news is not None and text.startswith(NEWS):
                on_news(text)
    except Exception as error:
        print("model-garden:", error, file=sys.stderr)
