#!/usr/bin/env python3
"""Guards a trainer whose cache fills up to 60 to 95 % of a limit of 1 GiB, fifty times, and checks each run from outside.

usage: bounded_runs.py --binary PATH [--runs 50] [--first-seed 1] [--log FILE] [--jobs 2]

Half of the runs may only be stopped (`--on-limit stop`), half are started again (`restart`). They save every 1 to 20 seconds, and some
also on request. A run is good if it is stopped at most once, and not below 80 % of the limit; if nothing is killed and memory stays
below the limit; and if in the end every step is done and none was lost: what was stopped and not started again is resumed here, without
a guard. Each run's seed, numbers and outcome go to the log as a line of JSON.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from fifty_runs import LIMIT_MIB, TRAINER, ledger, whole

LOWEST_STOP = 0.8


def draw(seed):
    """The numbers of one run: a cache that is full after 10 to 40 seconds, in a run that is three times as long, or some saves more."""
    rng = random.Random(seed)
    step_time = round(10 ** rng.uniform(-1.3, -0.5), 3)  # 50 to 320 ms
    peak = rng.uniform(0.60, 0.95) * LIMIT_MIB
    base = rng.uniform(80, 300)
    fill_steps = max(5, round(rng.uniform(10, 40) / step_time))
    save_seconds = 10 ** rng.uniform(0, 1.301)  # 1 to 20 s
    save_steps = max(1, round(save_seconds / step_time))
    return {
        "seed": seed,
        "peak_share": round(peak / LIMIT_MIB, 3),
        "step_time": step_time,
        "base": round(base),
        "grow": round((peak - base) / fill_steps, 3),
        "settle_at": fill_steps,
        "save_steps": save_steps,
        "save_time": round(rng.choice([0, rng.uniform(0, 0.3)]), 3),
        "max_steps": max(3 * fill_steps, fill_steps + 3 * save_steps),
        "on_limit": ["stop", "restart"][seed % 2],
        "way": rng.choice(["--on_sigterm die", "--on_sigterm die", "--on_sigterm save", "--channel"]),
    }


def guard(binary, seed):
    numbers = draw(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="garden-bounded-"))
    try:
        return {**numbers, **check(binary, folder, numbers)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(binary, folder, numbers):
    out, done = folder / "out", folder / "ledger"
    trainer = [sys.executable, str(TRAINER), "--output_dir", str(out), "--ledger", str(done)]
    # The cache is that of one process: after a restart it fills anew, from the step at which it began.
    for name in ("step_time", "save_time", "save_steps", "base", "grow", "max_steps"):
        trainer += [f"--{name}", str(numbers[name])]
    trainer += ["--cache_steps", str(numbers["settle_at"]), *numbers["way"].split()]
    resume = ["--resume-with", "--resume_from_checkpoint {checkpoint}"] if numbers["on_limit"] == "restart" else []
    begin = time.monotonic()
    run = subprocess.run(
        [binary, "run", "--memory-limit", "1GB", "--fence", "--on-limit", numbers["on_limit"], *resume, "--state-dir",
         str(folder / "state"), "--", *trainer], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    result, problems = {"code": run.returncode, "seconds": round(time.monotonic() - begin, 1)}, []
    try:
        attempts = json.loads((folder / "state" / "exit.json").read_text())["attempts"]
        stops = [attempt for attempt in attempts if attempt["stopped_because"]]
        reasons = [attempt["stopped_because"] for attempt in stops]
        shares = [round(float(words.split()[0]) * {"MiB": 1, "GiB": 1024}[words.split()[1]] / LIMIT_MIB, 3) for words in reasons]
        result |= {
            "fence": "fence of" in run.stderr,
            "attempts": len(attempts),
            "stops": reasons,
            "stopped_at_share": shares,
            "highest_mib": round(max(attempt["highest_bytes"] for attempt in attempts) / 2**20, 1),
            "endings": [attempt["ending"] for attempt in attempts],
        }
        if len(stops) > 1 or any(share < LOWEST_STOP for share in shares):
            problems.append("stopped too often or too early")
        if any("killed" in attempt["ending"] for attempt in attempts) or result["highest_mib"] >= LIMIT_MIB:
            problems.append("the limit was reached")
        if run.returncode != 0 and not (run.returncode == 75 and numbers["on_limit"] == "stop" and stops):
            problems.append(f"exit code {run.returncode}")
        newest = max((path for path in out.iterdir() if path.name.startswith("checkpoint-")), key=lambda p: int(p.name.split("-")[1]))
        kept = whole(newest)
        lost = attempts[-1]["lost_steps"] if run.returncode == 75 else 0
        result |= {"steps": len(kept), "lost": lost}
        if lost or kept != list(range(1, len(kept) + 1)):
            problems.append("a step is lost")
        if run.returncode == 75:
            resumed = subprocess.run([*trainer, "--grow", "0", "--step_time", "0.001", "--save_steps", "0",
                                      "--resume_from_checkpoint", str(newest)], capture_output=True, text=True, timeout=300)
            problems += [] if resumed.returncode == 0 else ["it could not be resumed"]
        final = whole(out / f"checkpoint-{numbers['max_steps']}")
        # One step may be done again after each stop: it had begun when the signal came.
        steps = ledger(done)
        result["done_twice"] = len(steps) - len(set(steps))
        if final != list(range(1, numbers["max_steps"] + 1)) or set(steps) != set(final) or result["done_twice"] > len(stops):
            problems.append("a step is missing, or too many were done twice")
    except Exception as error:  # whatever it is, the run was not good
        problems.append(f"{type(error).__name__}: {error}")
    return {**result, "good": not problems, "problems": problems}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--log", default="bounded_runs.jsonl")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time; each takes up to 1 GiB")
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.runs)
    good = 0
    with open(arguments.log, "w") as log, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for number, result in enumerate(pool.map(lambda seed: guard(binary, seed), seeds), 1):
            good += result["good"]
            log.write(json.dumps(result) + "\n")
            log.flush()
            print(f"{number:3} of {len(seeds)}: seed {result['seed']}, peak {result['peak_share']:.0%}, {result['on_limit']}, stopped at "
                  f"{result.get('stopped_at_share')}, {'good' if result['good'] else result['problems']}", flush=True)
    print(f"{good} of {len(seeds)} runs good")
    sys.exit(0 if good == len(seeds) else 1)


if __name__ == "__main__":
    main()
