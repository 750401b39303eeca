"""What does watching cost? Measures `model-garden monitor` beside psutil and memray, and writes the numbers as JSON.

    python3 bench/watch.py --binary target/release/model-garden [--venv DIR] [--quick] [--parts cost,turns,...]

Only the standard library is needed. psutil and memray are installed from PyPI into a virtual environment outside the
repository; without a network they are left out. Variants take turns, each beside stretches without a watcher, so that
what else the machine does falls on all of them.
"""

import argparse
import contextlib
import datetime
import hashlib
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

PARTS = ("cost", "turns", "memray", "growth", "flat", "report")
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
        self.turns = 4 if is_quick else 20
        self.turn_s = 2
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
        self.report_samples = (10_000, 100_000) if is_quick else (10_000, 100_000, 864_000)


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

    def turns(self):
        """Slow-down, finely: every watcher is there but halted, and each runs for a moment in turn, with none in between.

        A machine that others use is slow for seconds at a time, which hides a percent when stretches of a minute are
        compared. Stretches of two seconds side by side have the same luck.
        """
        plan, found = self.plan, []
        commands = {name: command for name, (command, _) in self.variants().items() if command}
        # It cannot keep up with ten samples a second, and one a second says enough.
        commands.pop("psutil memory_full_info 10 Hz", None)
        with Target(plan.gib, plan.children) as target, contextlib.ExitStack() as stack:
            watchers = {"none": None}
            for name, command in commands.items():
                folder = self.folder / name.replace(" ", "-")
                folder.mkdir()
                watchers[name] = stack.enter_context(Watcher(command(target.pid), folder))
                watchers[name].halt()
            target.work_for(2)
            names, shuffle = list(watchers), random.Random(SEED).shuffle
            alone = target.work_for(plan.turn_s)
            for turn in range(plan.turns):
                say(f"  turn {turn + 1} of {plan.turns}")
                shuffle(names)
                for name in names:
                    before = alone
                    with watchers[name].running() if watchers[name] else contextlib.nullcontext():
                        units = target.work_for(plan.turn_s)
                    alone = target.work_for(plan.turn_s)
                    found.append({"variant": name, "turn": turn, "alone": [before, alone], "units": units})
        return found

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
        with Target(plan.gib, plan.children, python) as target:
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

    def report(self):
        """Memory of the report at the end by the length of the trace: a recorded trace, its last sample repeated."""
        trace, long, found = self.folder / "trace.jsonl", self.folder / "long.jsonl", []
        with Target(SMALL_GIB, self.plan.children) as target:
            with Watcher(self.monitor("100ms")(target.pid), self.folder):
                time.sleep(1)
        lines = trace.read_text(encoding="utf-8").splitlines(keepends=True)
        is_sample = lambda line: line.startswith('{"time_s"')
        opening = [line for line in lines if not is_sample(line)]
        sample = json.loads([line for line in lines if is_sample(line)][-1])
        for count in self.plan.report_samples:
            with open(long, "w", encoding="utf-8") as file:
                file.writelines(opening)
                for index in range(count):
                    # A little noise, so that neighbouring samples are not the same.
                    changed = {"time_s": round(index / 10, 1), "rss": sample["rss"] + index * 7919 % 11 * 4096}
                    file.write(json.dumps(sample | changed, separators=(",", ":")) + "\n")
            peak = peak_of([self.binary, "diagnose", str(long)])
            found.append({"samples": count, "trace_bytes": long.stat().st_size, **peak})
        return found


def say(text):
    print(text, file=sys.stderr, flush=True)


def peak_of(command):
    """Runs a command to its end; its largest memory and its time."""
    begin, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, memory_of(process.pid).get("peak", 0))
        time.sleep(0.001)
    return {"peak": peak, "wall_s": time.monotonic() - begin}


def rounded(value):
    """The same with at most six decimals: clocks say no more, and files stay small."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


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
    found["model-garden sha256"] = hashlib.sha256(Path(bench.binary).read_bytes()).hexdigest()
    if bench.peers:
        ask = "import psutil, memray; print(psutil.__version__, memray.__version__)"
        answer = subprocess.run([str(bench.peers / "bin/python"), "-c", ask], capture_output=True, text=True).stdout
        found["psutil"], found["memray"] = answer.split()
    return found


def commands(bench):
    """The command lines that were measured, without the folders of this machine."""
    named = {name: command("PID") for name, (command, _) in bench.variants().items() if command}
    named["memray run"] = "memray run --force --quiet --output memray.bin target.py --gib N --children N --units N".split()
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
            output.write_text(json.dumps(rounded(result)) + "\n", encoding="utf-8")
    say(f"results: {output}")
    print(table.of(result))


if __name__ == "__main__":
    main()
