"""What does watching cost? Measures `model-garden monitor` beside psutil and memray, and writes the numbers as JSON.

    python3 bench/watch.py --binary target/release/model-garden [--venv DIR] [--quick] [--parts cost,memray,growth,flat]

Only the standard library is needed. psutil and memray are installed from PyPI into a virtual environment outside the
repository; without a network they are left out. Variants take turns, each beside stretches without a watcher, so that
what else the machine does falls on all of them.
"""

import argparse
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import table
from measure import HERE, Target, Watcher, cost_between, machine_facts, memory_of, monitor_command

PARTS = ("cost", "memray", "growth", "flat")
PEERS = ("memray==1.20.0", "psutil==7.2.2")
SMALL_GIB = 0.05
# The order of variants is drawn anew each round, the same on every machine.
SEED = 1
# A debugger that has not got in by then will not.
ATTACH_LIMIT_S = 30


class Plan:
    """How long and how often; `--quick` shows that everything works, its numbers are rough."""

    def __init__(self, is_quick):
        self.rounds = 2 if is_quick else 4
        self.monitor_s = 6 if is_quick else 60
        self.peer_s = 6 if is_quick else 12
        self.alone_s = 3 if is_quick else 6
        self.settle_s = 1
        self.gib = 1 if is_quick else 4
        self.children = 20
        self.memray_pairs = 2 if is_quick else 5
        self.attach_turns = 1 if is_quick else 3
        self.memray_units = 6 if is_quick else 20
        self.growth_children = (1, 20) if is_quick else (1, 5, 20, 100)
        self.growth_gib = (0.25, 1) if is_quick else (0.25, 1, 4)
        self.growth_repeats = 1 if is_quick else 2
        # A small tree's shares are read more often at first; this is for what it costs afterwards.
        self.growth_settle_s = 12
        self.growth_s = 5 if is_quick else 15
        self.flat_s = 30 if is_quick else 240
        self.flat_every_s = 10
        self.small_s = 10 if is_quick else 60


class Bench:
    """One run of the benchmark."""

    def __init__(self, arguments, folder):
        self.binary = str(Path(arguments.binary).resolve())
        self.plan = Plan(arguments.quick)
        self.folder = Path(folder)
        self.peers = install_peers(arguments.venv)

    def monitor(self, interval):
        """The command that attaches the monitor to a process."""
        return lambda pid: monitor_command(self.binary, pid, interval, self.folder / "trace.jsonl")

    def psutil(self, interval, *flags):
        """The command that polls a process with psutil."""
        script = str(HERE / "psutil_watch.py")
        return lambda pid: [str(self.peers / "bin/python"), script, "--pid", str(pid), "--interval", interval, *flags]

    def variants(self):
        """Every watcher by name, with how long it is measured each time; none at all is one of them."""
        plan = self.plan
        found = {
            "none": (None, plan.peer_s),
            "model-garden 1 Hz": (self.monitor("1s"), plan.monitor_s),
            "model-garden 10 Hz": (self.monitor("100ms"), plan.monitor_s),
        }
        if self.peers:
            for rate, interval in (("1 Hz", "1"), ("10 Hz", "0.1")):
                found[f"psutil memory_info {rate}"] = (self.psutil(interval), plan.peer_s)
                found[f"psutil memory_full_info {rate}"] = (self.psutil(interval, "--full"), plan.peer_s)
        return found

    def cost(self):
        """CPU and memory of each watcher, and how much slower the target works beside it."""
        plan, variants = self.plan, self.variants()
        shuffle = random.Random(SEED).shuffle
        blocks = []
        with Target(plan.gib, plan.children) as target:
            target.work_for(2)
            for number in range(plan.rounds):
                names = list(variants)
                shuffle(names)
                before = target.work_for(plan.alone_s)
                for name in names:
                    say(f"  round {number + 1} of {plan.rounds}: {name}")
                    block = self.block(target, *variants[name])
                    after = target.work_for(plan.alone_s)
                    blocks.append({"variant": name, "round": number, "alone": [before, after], **block})
                    before = after
            target_facts = target.facts
        return {"gib": plan.gib, "children": plan.children, "target": target_facts, "blocks": blocks}

    def block(self, target, command, seconds):
        """Work beside one watcher, from its start to its end."""
        if command is None:
            return {"units": target.work_for(seconds), "load": os.getloadavg()[0]}
        begin = time.monotonic()
        with Watcher(command(target.pid), self.folder) as watcher:
            time.sleep(self.plan.settle_s)
            before = watcher.reading()
            units = target.work_for(seconds)
            after = watcher.reading()
        used = {"start": watcher.start, "cost": cost_between(before, after), "peak_at_end": watcher.stopped_peak}
        return {"units": units, **used, "load": os.getloadavg()[0], "block_s": time.monotonic() - begin}

    def memray(self):
        """The same work in a target that memray starts, and in one that it attaches to."""
        if not self.peers:
            return None
        plan, runs = self.plan, []
        python, recording = str(self.peers / "bin/python"), self.folder / "memray.bin"
        target = [str(HERE / "target.py"), "--gib", str(plan.gib), "--children", str(plan.children)]
        target += ["--units", str(plan.memray_units)]
        under = [python, "-m", "memray", "run", "--force", "--quiet", "--output", str(recording), *target]
        for number in range(plan.memray_pairs):
            for name, command in (("none", [python, *target]), ("memray run", under)):
                say(f"  pair {number + 1} of {plan.memray_pairs}: {name}")
                runs.append({"variant": name, "pair": number, "units": units_of(command)})
        size = recording.stat().st_size
        return {"runs": runs, "recording_bytes": size, "attach": self.memray_attach(python, recording)}

    def memray_attach(self, python, recording):
        """Work before, while and after memray is attached; `None` where attaching does not work."""
        plan, turns = self.plan, []
        sys_executable, sys.executable = sys.executable, python
        try:
            target = Target(plan.gib, plan.children)
        finally:
            sys.executable = sys_executable
        with target:
            target.work_for(2)
            for turn in range(plan.attach_turns):
                say(f"  turn {turn + 1} of {plan.attach_turns}: memray attach")
                before = target.work_for(plan.alone_s)
                recording.unlink(missing_ok=True)
                attached = memray_call(target, python, "attach", "--output", str(recording), str(target.pid))
                if attached is not None:
                    say(f"  memray attach does not work here: {attached}")
                    return None
                with_it = target.work_for(plan.alone_s)
                memray_call(target, python, "detach", str(target.pid))
                turns.append({"alone": [before, target.work_for(plan.alone_s)], "units": with_it})
        return turns

    def growth(self):
        """The monitor's cost by the number of processes, and its first reading of shares by the target's memory."""
        plan, by_children, by_memory = self.plan, [], []
        for repeat in range(plan.growth_repeats):
            for children in plan.growth_children:
                say(f"  {children} children, {SMALL_GIB} GiB")
                with Target(SMALL_GIB, children) as target:
                    with Watcher(self.monitor("100ms")(target.pid), self.folder) as watcher:
                        time.sleep(plan.growth_settle_s)
                        before = watcher.reading()
                        time.sleep(plan.growth_s)
                        cost = cost_between(before, watcher.reading())
                    by_children.append({"children": children, "repeat": repeat, "start": watcher.start, "cost": cost})
            for gib in plan.growth_gib:
                say(f"  {plan.children} children, {gib} GiB")
                with Target(gib, plan.children) as target:
                    for _ in range(2):
                        with Watcher(self.monitor("1s")(target.pid), self.folder) as watcher:
                            time.sleep(0.2)
                        by_memory.append({"gib": gib, "repeat": repeat, "start": watcher.start})
        return {"by_children": by_children, "by_memory": by_memory, "small_gib": SMALL_GIB}

    def flat(self):
        """The monitor's memory over some minutes at ten samples a second, then its cost at one a second on a small tree."""
        plan, readings = self.plan, []
        with Target(SMALL_GIB, plan.children) as target:
            with Watcher(self.monitor("100ms")(target.pid), self.folder) as watcher:
                first, begin = watcher.reading(), time.monotonic()
                while (elapsed := time.monotonic() - begin) < plan.flat_s:
                    readings.append({"elapsed_s": elapsed, **memory_of(watcher.pid)})
                    time.sleep(plan.flat_every_s)
                last = watcher.reading()
            trace_bytes = (self.folder / "trace.jsonl").stat().st_size
            found = {"readings": readings, "cost": cost_between(first, last), "trace_bytes": trace_bytes}
            found["peak_at_end"] = watcher.stopped_peak
            with Watcher(self.monitor("1s")(target.pid), self.folder) as watcher:
                stages = [watcher.reading()]
                for _ in range(2):
                    time.sleep(plan.small_s)
                    stages.append(watcher.reading())
            found["small_tree_1_hz"] = [cost_between(a, b) for a, b in zip(stages, stages[1:])]
        return found


def say(text):
    print(text, file=sys.stderr, flush=True)


def units_of(command):
    """Runs a target to its end; the units of work that it reported."""
    output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [line for line in lines if "wall_s" in line]


def memray_call(target, python, *arguments):
    """Calls memray while the target works, as it gets in at an allocation only; what went wrong, or `None`."""
    words = [python, "-m", "memray", *arguments]
    call = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    end = time.monotonic() + ATTACH_LIMIT_S
    while call.poll() is None:
        if time.monotonic() > end:
            os.killpg(call.pid, signal.SIGKILL)
            call.wait()
            return f"no answer within {ATTACH_LIMIT_S} s"
        target.work()
    return None if call.returncode == 0 else " ".join(call.stdout.read().split())


def install_peers(venv):
    """The virtual environment with psutil and memray, made if it is missing; `None` if it cannot be made."""
    python = venv / "bin/python"
    has_peers = [str(python), "-c", "import psutil, memray"]
    if python.exists() and subprocess.run(has_peers, capture_output=True).returncode == 0:
        return venv
    say(f"installing {' and '.join(PEERS)} into {venv}")
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        say(f"psutil and memray are left out: {error}")
        return None
    return venv


def versions(bench):
    """The versions of what is compared."""
    found = {"model-garden": subprocess.run([bench.binary, "--version"], capture_output=True, text=True).stdout.strip()}
    if bench.peers:
        ask = "import psutil, memray; print(psutil.__version__, memray.__version__)"
        answer = subprocess.run([str(bench.peers / "bin/python"), "-c", ask], capture_output=True, text=True).stdout
        found["psutil"], found["memray"] = answer.split()
    return found


def commands(bench):
    """The command lines that were measured, without the folders of this machine."""
    named = {name: command("PID") for name, (command, _) in bench.variants().items() if command}
    named["memray run"] = ["memray", "run", "--force", "--output", "memray.bin", "target.py"]
    return {name: " ".join(Path(word).name if "/" in word else word for word in words) for name, words in named.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the release binary of model-garden")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache/model-garden-bench")
    parser.add_argument("--quick", action="store_true", help="a few minutes, rough numbers")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    parser.add_argument("--output", type=Path, help="the JSON file [default: bench/results/watch-DATE.json]")
    arguments = parser.parse_args()
    now = datetime.datetime.now(datetime.timezone.utc)
    name = f"watch-{now:%Y-%m-%d}{'-quick' if arguments.quick else ''}.json"
    output = arguments.output or HERE / "results" / name
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, folder)
        result = {"date": f"{now:%Y-%m-%d %H:%M} UTC", "quick": arguments.quick, "machine": machine_facts()}
        result |= {"versions": versions(bench), "commands": commands(bench), "plan": vars(bench.plan)}
        for part in arguments.parts.split(","):
            say(f"{part}: {getattr(Bench, part).__doc__}")
            result[part] = getattr(bench, part)()
            # Written after each part, so that an interrupted run is not lost.
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    say(f"results: {output}")
    print(table.of(result))


if __name__ == "__main__":
    main()
