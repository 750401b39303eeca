"""What the benchmark measures with: a target that works on demand, watchers that come and go, and their clocks.

CPU time of another process is read from its own clock (`clock_gettime` with the clock id made from its process id), in
nanoseconds and with all its threads; `/proc/PID/stat` counts hundredths of a second, too coarse for a watcher that needs
half a millisecond per second.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def cpu_seconds(pid):
    """User and system time that a process has used so far."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_of(pid):
    """Resident memory, its anonymous part and the peak so far, in bytes; empty once the process has gone."""
    names = {"VmRSS:": "resident", "RssAnon:": "anonymous", "VmHWM:": "peak"}
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {names[word[0]]: int(word[1]) << 10 for word in words if word and word[0] in names}


class Target:
    """The process that is watched."""

    def __init__(self, gib, children, python=sys.executable):
        command = [python, str(HERE / "target.py"), "--gib", str(gib), "--children", str(children)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self._answer()
        self.pid = self.facts["pid"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _answer(self):
        return json.loads(self.process.stdout.readline())

    def work(self):
        """Does one unit of work; says how long it and its parts took."""
        self.process.stdin.write("work\n")
        self.process.stdin.flush()
        return self._answer()

    def work_for(self, seconds):
        """Does units of work until a time has passed."""
        units, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            units.append(self.work())
        return units


class Watcher:
    """A watcher of a target: started, and stopped by SIGINT as a user would."""

    def __init__(self, command, folder):
        self.log = Path(folder) / "watcher.log"
        self.stopped_peak = 0
        with open(self.log, "wb") as log:
            begin = time.monotonic()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        self.pid = self.process.pid
        while self.samples() == 0:
            if self.process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended at once: {self.log.read_text()}")
            time.sleep(0.005)
        self.start = {"cpu_s": cpu_seconds(self.pid), "wall_s": time.monotonic() - begin}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Stops it, and follows its memory to the end: the final report may need more than the watching."""
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGINT)
        end = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < end:
            self.stopped_peak = max(self.stopped_peak, memory_of(self.pid).get("peak", 0))
            time.sleep(0.001)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def halt(self):
        """Lets it do nothing until it is told to go on."""
        self.process.send_signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def running(self):
        """Lets a halted watcher run for a while."""
        self.process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.halt()

    def samples(self):
        """Samples so far: each is one line, and lines that are not samples begin with a letter."""
        return sum(not line[:1].isalpha() for line in self.log.read_bytes().splitlines())

    def reading(self):
        """The watcher's clocks and memory at this moment."""
        return {"at_s": time.monotonic(), "cpu_s": cpu_seconds(self.pid), "samples": self.samples(), **memory_of(self.pid)}


def cost_between(before, after):
    """What a watcher used between two readings."""
    wall, cpu = after["at_s"] - before["at_s"], after["cpu_s"] - before["cpu_s"]
    samples = after["samples"] - before["samples"]
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "percent_of_a_core": 100 * cpu / wall,
        "samples": samples,
        "microseconds_per_sample": 1e6 * cpu / samples if samples else None,
        "resident": after.get("resident"),
        "anonymous": after.get("anonymous"),
        "peak": after.get("peak"),
    }


def monitor_command(binary, pid, interval, trace):
    """How `model-garden monitor` is attached to a process."""
    return [binary, "monitor", "--pid", str(pid), "--interval", interval, "--plain", "-o", str(trace)]


def machine_facts():
    """What a reader must know about the machine to compare numbers."""
    def text(path):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError:
            return None

    models = [line.split(":", 1)[1].strip() for line in (text("/proc/cpuinfo") or "").splitlines() if "model name" in line]
    total = [line for line in (text("/proc/meminfo") or "").splitlines() if line.startswith("MemTotal:")]
    return {
        "cores": os.cpu_count(),
        "processor": models[0] if models else None,
        "memory_kib": int(total[0].split()[1]) if total else None,
        "kernel": os.uname().release,
        "huge_pages": text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": sys.version.split()[0],
        "processes_at_start": sum(name.isdigit() for name in os.listdir("/proc")),
        "load_at_start": os.getloadavg(),
    }
