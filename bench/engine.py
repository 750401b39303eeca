#!/usr/bin/env python3
"""Training steps of the engine beside PyTorch on the CPU: the same checkpoint, batch and number of threads, in alternation.

usage: engine.py --python PYTHON [--threads 2] [--rounds 5] [--steps 8] [--out FILE]

PYTHON has torch, transformers and peft (testdata/reference/requirements.txt). Each round runs both programs once, in turn first; a round's
ratio is PyTorch's median step time over ours. Prints JSON: every round, the median ratio and its range, peak memory of both, and
whether both computed the same losses.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TORCH = os.path.join(ROOT, "testdata", "reference", "bench_torch.py")


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr.decode('utf-8', 'replace')}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--recompute", action="store_true", help="ours makes activations again")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "garden-model", "--example", "bench_steps"], cwd=ROOT, check=True)
    ours_program = os.path.join(ROOT, "target", "release", "examples", "bench_steps")
    with tempfile.TemporaryDirectory() as folder:
        case = os.path.join(folder, "case")
        subprocess.run([arguments.python, TORCH, case, "--save-only"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ours = [ours_program, case, str(arguments.threads), str(arguments.steps), "2"] + (["recompute"] if arguments.recompute else [])
        theirs = [arguments.python, TORCH, case, "--run-only", "--threads", str(arguments.threads), "--steps", str(arguments.steps), "--warm-up", "2"]
        rounds = []
        for number in range(arguments.rounds):
            pair = {}
            for name in ("ours", "torch") if number % 2 == 0 else ("torch", "ours"):
                pair[name] = run(ours if name == "ours" else theirs)
            off = max(abs(a - b) / b for a, b in zip(pair["ours"]["losses"], pair["torch"]["losses"]))
            rounds.append({
                "ours_s": pair["ours"]["median_step_seconds"],
                "torch_s": pair["torch"]["median_step_seconds"],
                "ratio": pair["torch"]["median_step_seconds"] / pair["ours"]["median_step_seconds"],
                "ours_fastest_s": min(pair["ours"]["step_seconds"]),
                "torch_fastest_s": min(pair["torch"]["step_seconds"]),
                "ours_peak_bytes": pair["ours"]["peak_above_start_bytes"],
                "ours_planned_bytes": pair["ours"]["planned_bytes"],
                "torch_peak_bytes": pair["torch"]["peak_above_imports_bytes"],
                "losses_off": off,
                "load": os.getloadavg()[0],
            })
            print(f"round {number + 1}: {rounds[-1]['ratio']:.2f} x PyTorch (ours {rounds[-1]['ours_s']:.3f} s, PyTorch {rounds[-1]['torch_s']:.3f} s)", file=sys.stderr)
    ratios = sorted(one["ratio"] for one in rounds)
    told = {
        "threads": arguments.threads,
        "recompute": arguments.recompute,
        "median_ratio": statistics.median(ratios),
        "ratios": ratios,
        "fastest_ratio": min(one["torch_fastest_s"] for one in rounds) / min(one["ours_fastest_s"] for one in rounds),
        "memory_ratio": statistics.median(one["ours_peak_bytes"] / one["torch_peak_bytes"] for one in rounds),
        "rounds": rounds,
    }
    text = json.dumps(told, indent=2)
    print(text)
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
