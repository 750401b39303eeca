"""A `model-garden monitor` of our own, for a program that nobody watches yet.

It is no child of this process: it would be part of the tree that it watches, outlive it for that reason, and be met by programs that wait for
any child of theirs. A shell starts it and ends, in a session of its own, so that Ctrl-C reaches the program and not its watcher. It ends
by itself when the process that it watches has gone. Every wait has an end: a watcher that does not start or finish costs seconds, never the run.
"""
import json
import os
import signal
import textwrap
import threading
import time

from .binary import find_binary
from .events import Channel
from .memory import format_bytes, format_change
from .speech import warn_once

START_TIMEOUT_S = 5.0
# It judges the trace when it is told that the run has ended: milliseconds for short runs, seconds for millions of samples.
FINISH_TIMEOUT_S = 15.0
KILL_TIMEOUT_S = 2.0
# As wide as the binary's own reports.
COLUMNS = 100
# A socket's path may have no more than 107 letters.
LONGEST_FOLDER = 80
# What `monitor --plain` says when its verdict changes begins with this.
NEWS = "so far "
# The first argument is where the report goes; the process id of the monitor is what the shell prints.
LAUNCHER = 'report=$1; shift; "$@" >"$report" & echo $!'


class Report:
    """What the monitor found: its full `text`, the same as `data` (see docs/json.md), and the `trace`."""

    def __init__(self, text, data, trace):
        self.text = text
        self.data = data
        self.trace = trace

    @property
    def verdict(self):
        """`flat`, `sawtooth`, `settled`, `growing`, `leak`, `insufficient`, or None if there is no report."""
        return self.data.get("verdict")

    @property
    def summary(self):
        """The verdict in a sentence, the memory at the start and end with its growth, the cause and what to do next."""
        if not self.data:
            return ""
        head = f"{self.verdict.upper()}  "
        lines = textwrap.wrap(self.data["summary"], COLUMNS, initial_indent=head, subsequent_indent=" " * len(head))
        memory, growth = self.data["memory"], self.data["growth"]
        if memory is not None:
            # Not labelled `memory`: in a log that would be one more sample to whoever judges the log.
            first, last = memory["first_bytes"], memory["last_bytes"]
            lines.append(f"  from {format_bytes(first)} at the start to {format_bytes(last)} at the end ({format_change(last - first)})")
        if growth["bytes_per_step"] is not None:
            each = growth["bytes_per_example"]
            lines.append(f"  growth {format_change(growth['bytes_per_step'])} per step" + (f", {format_change(each)} per example" if each is not None else ""))
        elif growth["bytes_per_second"] is not None:
            lines.append(f"  growth {format_change(60 * growth['bytes_per_second'])} per minute")
        return "\n".join(lines + self._next())

    def _next(self):
        """The cause with its fix where a measurement has earned it, else the likeliest ones, and the command that finds the piece that keeps memory."""
        causes = self.data["causes"] if self.verdict in ("leak", "growing", "settled") else []
        parts = []
        if causes and self.data["suspect"] == causes[0]["id"]:
            parts.append(("cause", causes[0]["title"]))
            parts.append(("fix", causes[0]["fix"]))
        elif causes:
            # A fix for what nothing but the curve points to sends people the wrong way.
            parts.append(("causes", "; ".join(f"{cause['title']} ({cause['score']:.0%})" for cause in causes[:2])))
        if self.data["next_command"]:
            parts.append(("next", self.data["next_command"]))
        lines = []
        for name, text in parts:
            head = f"  {name:<6} "
            lines += textwrap.wrap(text, COLUMNS, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
        return lines


class OwnMonitor:
    """The monitor of this process. Construction raises if it cannot be started; nothing raises afterwards."""

    def __init__(self, trace=None, interval="1s", on_news=None):
        import tempfile

        self.interval_s = _seconds(interval)
        binary = find_binary()
        self.trace = os.path.abspath(os.fspath(trace)) if trace else default_trace()
        self.pid = None
        self._owner = os.getpid()
        self._last_words = []
        self._reader = None
        self._handle = None
        place = tempfile.gettempdir()
        self._folder = tempfile.mkdtemp(prefix="model-garden-", dir=place if len(place) < LONGEST_FOLDER else "/tmp")
        try:
            self._start(binary, interval, on_news)
            self.channel = self._connect()
        except BaseException:
            self._end_now()
            if trace is None and os.path.exists(self.trace) and os.path.getsize(self.trace) == 0:
                os.remove(self.trace)
            raise

    def _start(self, binary, interval, on_news):
        import subprocess

        command = [binary, "monitor", "--pid", str(os.getpid()), "--plain", "--interval", str(interval)]
        command += ["--channel", self._socket_path, "-o", self.trace, "--report", self._data_path]
        reading, writing = os.pipe()
        # What it says ends when it ends, which is how its end is seen.
        self._reader = threading.Thread(
            target=_read_talk, args=(reading, self._last_words, on_news), name="model-garden-talk", daemon=True
        )
        self._reader.start()
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", LAUNCHER, "sh", self._report_path, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=writing,
                start_new_session=True,
            )
        finally:
            os.close(writing)
        printed, _ = shell.communicate(timeout=START_TIMEOUT_S)
        self.pid = int(printed)
        try:
            # The number alone could be another process's by the time that it is used.
            self._handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            self._handle = None

    @property
    def _socket_path(self):
        return os.path.join(self._folder, "events")

    @property
    def _report_path(self):
        return os.path.join(self._folder, "report")

    @property
    def _data_path(self):
        return os.path.join(self._folder, "report.json")

    @property
    def is_running(self):
        """Whether the monitor has not ended yet."""
        return self._reader is not None and self._reader.is_alive()

    def _connect(self):
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return Channel(self._socket_path)
            except OSError as error:
                if not self.is_running:
                    said = " ".join(self._last_words) or "no output"
                    raise RuntimeError(f"the monitor exited at once: {said}") from None
                if time.monotonic() > end:
                    raise RuntimeError(f"the monitor did not respond within {START_TIMEOUT_S:.3g} s") from error
                time.sleep(0.005)

    def finish(self):
        """Tells the monitor that the run has ended and waits for its report; None in a forked process, or the second time."""
        if self.pid is None or os.getpid() != self._owner:
            return None
        text, data = "", {}
        try:
            self.channel.tell(event="exit")
            text = self._wait_for_report()
            with open(self._data_path, encoding="utf-8") as file:
                data = json.load(file)
        except Exception as error:
            warn_once("monitor", f"no report from the monitor: {error}. Judge the trace with `model-garden diagnose`.")
        finally:
            self.channel.close()
            self._end_now()
        return Report(text, data, self.trace)

    def _wait_for_report(self):
        self._reader.join(FINISH_TIMEOUT_S)
        if self.is_running:
            raise RuntimeError(f"it did not finish within {FINISH_TIMEOUT_S:.3g} s")
        with open(self._report_path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if not text.strip():
            raise RuntimeError(" ".join(self._last_words[-6:]) or "it exited without output")
        return text

    def _end_now(self):
        """Ends the monitor if it still runs, politely at first, and removes what belongs to it."""
        import shutil

        for end in (signal.SIGTERM, signal.SIGKILL):
            if self.pid is not None and self.is_running:
                self._send(end)
                self._reader.join(KILL_TIMEOUT_S)
        self.pid = None
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, number):
        try:
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            else:
                os.kill(self.pid, number)
        except OSError:
            pass  # It has ended meanwhile.


def _seconds(interval):
    """The time that the binary's `--interval` means; a second if it is written in another way."""
    text = str(interval)
    try:
        return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.rstrip("s"))
    except ValueError:
        return 1.0


def default_trace():
    """A new file for a trace: where the binary keeps traces that nobody named, or in the first folder that takes it."""
    for folder in (*_kept_folders(), os.getcwd()):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            return _new_file(folder)
        except OSError:
            continue
    raise RuntimeError("no writable folder for the trace: name a file for it (trace=...)")


def _new_file(folder):
    seconds = int(time.time())
    while True:
        path = os.path.join(folder, f"model-garden-{seconds}-{os.getpid()}.jsonl")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return path
        except FileExistsError:
            seconds += 1  # Another watch of the same second, here or in a container with the same process ids.


def _kept_folders():
    """As the binary has them: of the user's state, else for temporary files. Other than whole paths do not count."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = os.environ.get("HOME", "")
    if not os.path.isabs(state) and os.path.isabs(home):
        state = os.path.join(home, ".local", "state")
    if os.path.isabs(state):
        yield os.path.join(state, "model-garden", "traces")
    temporary = os.environ.get("TMPDIR", "")
    yield temporary if os.path.isabs(temporary) else "/tmp"


def _read_talk(reading, last_words, on_news):
    """Reads what the monitor says, so that it never waits for us; keeps the end of it and passes changes of the verdict on."""
    try:
        with os.fdopen(reading, "rb") as stream:
            for line in stream:
                text = line.decode("utf-8", "replace").rstrip()
                last_words.append(text.strip())
                del last_words[:-20]
                if on_news is not None and text.startswith(NEWS):
                    on_news(text)
    except Exception as error:
        warn_once("talk", f"cannot read the monitor's output: {error}")
