#!/usr/bin/env python3
"""Twenty forking programs under `model-garden monitor`: is what it says of their memory true?

usage: check_forking.py MODEL_GARDEN [--scale N] [--interval 1s] [--samples 14] [NAME ...]

Runs each program of `programs/forking.py` until it holds still, then reads the sum of Pss_Anon of all its processes, twice and quietly: the
truth. Every sample from the second after that must be within 3 % of it, or marked as a bound with the truth between its ends; from the
tenth on it must be within 3 % either way. Needs up to 2.3 GiB of free memory; --scale 8 an eighth of it. Ends with 1 if a sample is wrong.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

PROGRAMS = pathlib.Path(__file__).parent / "programs" / "forking.py"
NEAR, SETTLED_AFTER = 0.03, 10
MIB = 1 << 20


def tree(root):
    """All processes below one, by their parents and by the session."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue
            parents[int(entry)] = (int(fields[1]), int(fields[3]), fields[0])
    session = parents[root][1]
    found, grew = {root}, True
    while grew:
        new = {pid for pid, (parent, own, _) in parents.items() if pid not in found and (parent in found or own == session)}
        grew, found = bool(new), found | new
    return sorted(pid for pid in found if parents[pid][2] != "Z")


def pss_anon(pid):
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return 0


def truth(root):
    """The sum of Pss_Anon, once two readings agree."""
    last = None
    while True:
        members = tree(root)
        found = sum(pss_anon(pid) for pid in members)
        if last is not None and members == last[0] and abs(found - last[1]) <= 0.001 * found:
            return found, len(members)
        last = (members, found)
        time.sleep(0.2)


def samples(trace):
    records = []
    for line in trace.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "anon" in record:
            records.append(record)
    return records


def check(binary, name, options):
    """Runs one program; gives what was wrong and a line that sums it up."""
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.jsonl"
        command = [binary, "monitor", "--interval", options.interval, "-o", str(trace), "--",
                   sys.executable, str(PROGRAMS), name, str(options.scale)]
        watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   start_new_session=True)
        try:
            for line in watcher.stdout:
                if line.strip() == "quiet":
                    break
            else:
                return [f"{name}: ended before it was quiet"], ""
            before = len(samples(trace))
            children = pathlib.Path(f"/proc/{watcher.pid}/task/{watcher.pid}/children").read_text().split()
            root = int(children[0])
            expected, count = truth(root)
            while len(samples(trace)) < before + options.samples:
                time.sleep(0.1)
            found = samples(trace)
        finally:
            watcher.stdin.close()
            watcher.stdout.close()
            watcher.wait()
    wrong, words = [], []
    for number, sample in enumerate(found[before:], 1):
        shown, least = sample["anon"], sample.get("anon_least")
        off = (shown - expected) / expected
        is_near = abs(off) <= NEAR
        holds = least is not None and least <= expected * 1.002 and expected <= shown * 1.002
        words.append(f"{'<=' if least is not None else ''}{100 * off:+.1f}")
        if number >= 2 and not (is_near or holds) or number >= SETTLED_AFTER and not is_near:
            bound = f", at least {least / MIB:.1f}" if least is not None else ""
            wrong.append(f"{name}: sample {number}: {shown / MIB:.1f} MiB{bound}, but it is {expected / MIB:.1f} MiB")
    return wrong, f"{name:28} {count:2} processes {expected / MIB:7.1f} MiB  " + " ".join(words)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--interval", default="1s")
    parser.add_argument("--samples", type=int, default=14)
    options = parser.parse_args()
    listed = subprocess.run([sys.executable, str(PROGRAMS), "--list"], capture_output=True, text=True, check=True).stdout.split()
    wrong = []
    for name in options.names or listed:
        found, line = check(os.path.abspath(options.binary), name, options)
        print(line, *found, sep="\n  ", flush=True)
        wrong += found
    print(f"{len(wrong)} samples are wrong" if wrong else "every sample is right")
    sys.exit(bool(wrong))


main()
