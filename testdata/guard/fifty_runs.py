#!/usr/bin/env python3
"""Guards the leaking trainer under a limit of 1 GiB, fifty times with other step and save times, and checks each run from outside.

usage: fifty_runs.py --binary PATH [--runs 50] [--first-seed 1] [--log FILE] [--jobs 2]

A run is good if `model-garden run` ends with 75; the newest checkpoint is whole, read here without its code; it holds every step
that the ledger says was done; memory stayed below the limit and nothing was killed (with a fence where one can be built, so that
crossing the limit would be a real kill); and the resumed trainer goes on with the next step, none lost and none done twice.
Each run's seed, numbers and outcome go to the log as a line of JSON.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

TRAINER = pathlib.Path(__file__).resolve().parent.parent / "programs" / "trainer.py"
LIMIT_MIB = 1024


def draw(seed):
    """The numbers of one run: from a fast step to a slow one, from no save time to seconds, all in some seconds of growth."""
    rng = random.Random(seed)
    step_time = round(10 ** rng.uniform(-1.7, -0.2), 3)
    return {
        "seed": seed,
        "step_time": step_time,
        "save_time": round(rng.choice([0, rng.uniform(0, 1), rng.uniform(1, 4)]), 3),
        "save_memory": round(rng.choice([0, rng.uniform(0, 40), rng.uniform(40, 80)])),
        "base": rng.randrange(100, 500),
        "grow": round(rng.uniform(30, 110) * step_time, 2),  # MiB per step: 30 to 110 MiB per second
        "way": rng.choice(["--on_sigterm save", "--on_sigterm save --workers 2", "--channel", "--channel --quiet --workers 1"]),
    }


def whole(checkpoint):
    """Reads a checkpoint file by file; the steps that it holds."""
    data = (checkpoint / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    assert 8 + length + end == len(data), "model.safetensors is cut"
    assert zipfile.ZipFile(checkpoint / "optimizer.pt").testzip() is None, "optimizer.pt is damaged"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert state["global_step"] == int(checkpoint.name.split("-")[1]), "the step does not fit the name"
    return state["steps_done"]


def ledger(path):
    return [int(line.split()[1]) for line in path.read_text().splitlines()]


def guard(binary, seed):
    numbers = draw(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="garden-guard-"))
    try:
        return {**numbers, **check(binary, folder, numbers)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(binary, folder, numbers):
    out, done = folder / "out", folder / "ledger"
    trainer = [sys.executable, str(TRAINER), "--output_dir", str(out), "--ledger", str(done), "--jitter", str(numbers["seed"])]
    for name in ("step_time", "save_time", "save_memory", "base", "grow"):
        trainer += [f"--{name}", str(numbers[name])]
    trainer += numbers["way"].split()
    begin = time.monotonic()
    run = subprocess.run(
        [binary, "run", "--memory-limit", "1GB", "--fence", "--state-dir", str(folder / "state"), "--", *trainer,
         "--max_steps", "100000"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    result = {"code": run.returncode, "seconds": round(time.monotonic() - begin, 1)}
    problems = [] if run.returncode == 75 else [f"exit code {run.returncode}"]
    try:
        attempt = json.loads((folder / "state" / "exit.json").read_text())["attempts"][-1]
        result |= {
            "fence": "fence of" in run.stderr,
            "method": re.search(r"guard: will (ask|send)", run.stderr).group(1),
            "stopped_because": attempt["stopped_because"],
            "highest_mib": round(attempt["highest_bytes"] / 2**20, 1),
            "stopping_seconds": round(attempt["stopping_seconds"], 2),
            "ending": attempt["ending"],
        }
        if result["highest_mib"] >= LIMIT_MIB or "killed" in attempt["ending"]:
            problems.append("the limit was reached")
        newest = max((path for path in out.iterdir() if path.name.startswith("checkpoint-")), key=lambda p: int(p.name.split("-")[1]))
        steps = whole(newest)
        last = len(steps)
        result["steps"] = last
        if steps != list(range(1, last + 1)) or ledger(done) != steps:
            problems.append("the checkpoint does not hold each step that was done once")
        # Go on for five more steps, without growth and without a guard.
        resumed = subprocess.run([*trainer, "--grow", "0", "--step_time", "0.01", "--save_time", "0", "--max_steps", str(last + 5),
                                  "--resume_from_checkpoint", str(newest)], capture_output=True, text=True, timeout=120)
        final = whole(out / f"checkpoint-{last + 5}")
        if resumed.returncode != 0 or final != list(range(1, last + 6)) or ledger(done) != final:
            problems.append("after resuming a step is lost or was done twice")
    except Exception as error:  # whatever it is, the run was not good
        problems.append(f"{type(error).__name__}: {error}")
    return {**result, "good": not problems, "problems": problems}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--log", default="fifty_runs.jsonl")
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
            print(f"{number:3} of {len(seeds)}: seed {result['seed']}, {result.get('steps')} steps, highest {result.get('highest_mib')} MiB, "
                  f"{'good' if result['good'] else result['problems']}", flush=True)
    print(f"{good} of {len(seeds)} runs good")
    sys.exit(0 if good == len(seeds) else 1)


if __name__ == "__main__":
    main()
