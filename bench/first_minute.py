"""What does the first minute of watching cost? CPU time of whole minutes, start-up and first reading of shares included.

    python3 bench/first_minute.py --binary target/release/model-garden [--binary OTHER] --python VENV/bin/python

Watchers attach at one sample a second to a target of 2 GiB with 8 forked children, one after the other in a new order each
round; `--python` has psutil. User and system time are counted, so other work on the machine matters little.
"""

import argparse
import json
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from measure import HERE, Target, cpu_seconds, monitor_command


def minute_of(command, seconds):
    """What a watcher has used after so many seconds."""
    watcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(seconds)
        return cpu_seconds(watcher.pid)
    finally:
        watcher.send_signal(signal.SIGINT)
        watcher.wait(timeout=60)


def bounds_in(trace):
    """The share of a trace's samples that know bounds only, and the first second after which none does."""
    samples = [json.loads(line) for line in Path(trace).read_text().splitlines() if '"rss"' in line]
    marked = [sample["time_s"] for sample in samples if "anon_least" in sample]
    return {"samples": len(samples), "bounds": len(marked), "last_bound_s": max(marked, default=0.0)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", action="append", required=True)
    parser.add_argument("--python", required=True, help="a Python that has psutil")
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--children", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, Target(arguments.gib, arguments.children) as target:
        trace = Path(folder) / "trace.jsonl"
        ours = {binary: monitor_command(binary, target.pid, "1s", trace) for binary in arguments.binary}
        theirs = {"psutil": [arguments.python, str(HERE / "psutil_watch.py"), "--pid", str(target.pid), "--interval", "1"]}
        for number in range(arguments.rounds):
            for name, command in draw.sample(sorted({**ours, **theirs}.items()), len(ours) + 1):
                used = minute_of(command, arguments.seconds)
                answer = {"round": number, "watcher": name, "cpu_s": round(used, 3), "percent": round(100 * used / arguments.seconds, 3)}
                answer.update(bounds_in(trace) if name in ours else {})
                print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
