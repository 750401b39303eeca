#!/usr/bin/env python3
"""How far training on a GPU is from float32, ours and transformers + peft's in bf16, at the 3B shape with random weights.

usage: learning.py --binary model-garden --work FOLDER --vocabulary FOLDER [--line NAME] [--phase make,peer,ours,compare] [--recorded FILE]

Each line of LINES is a setting with some seeds (rows, order and first adapter). The truth is the peer's own float32 run; the peer is the same Trainer under bf16 autocast.
Both are slow and run once: their losses are kept in recorded-learning.json beside this file, and what is there is not run again.
`make` writes 7.5 GB into FOLDER; --vocabulary is a folder that testdata/data/real_vocabulary.py made. Exits 1 if ours are further from float32 than the bounds in `compare`.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "training")]

import parity  # noqa: E402

RECORDED = HERE / "recorded-learning.json"
# What a line changes of parity.SETTINGS; B is drawn unless `is_new`, as every real run begins.
LINES = {
    "new adapter, r 16, alpha 16": {"steps": 30, "seeds": [42, 7, 11, 13, 17], "is_new": True, "rank": 16, "alpha": 16},
    "r 8, alpha 8": {"steps": 20, "seeds": [42], "rank": 8, "alpha": 8},
    "r 8, alpha 8, batch 3, rate 1e-4": {"steps": 20, "seeds": [7, 11], "rank": 8, "alpha": 8, "batch": 3, "accumulation": 1, "rate": 1e-4},
    "r 16, alpha 32": {"steps": 20, "seeds": [42], "rank": 16, "alpha": 32},
}
PHASES = ("make", "peer", "ours", "compare")


def runs(arguments):
    """Each line and seed, with the settings in place and rows and first adapter made."""
    usual = dict(parity.SETTINGS)
    for line, changes in LINES.items():
        if arguments.line and line not in arguments.line:
            continue
        for seed in changes["seeds"]:
            parity.SETTINGS.update(usual, seed=seed, **{name: value for name, value in changes.items() if name in usual})
            folder = arguments.work / f"{line}-{seed}".replace(" ", "-").replace(",", "")
            if not (folder / "first").exists():
                parity.make_rows(folder / "data")
                parity.make_adapter(arguments.work / "model", folder / "first", is_new=changes.get("is_new", False))
            yield line, seed, changes["steps"], folder


def make(arguments, _):
    from random_checkpoint import write_checkpoint

    if not (arguments.work / "model/model.safetensors.index.json").exists():
        write_checkpoint(arguments.work / "model", "3b", arguments.vocabulary, "cuda", 42)
        parity.give_back()


def peer(arguments, results):
    import peft
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__, "device": torch.cuda.get_device_name()}
    for name, dtype in {"bfloat16": torch.bfloat16, "float32": torch.float32}.items():
        base = None
        for line, seed, steps, folder in runs(arguments):
            if name in results["losses"].get(line, {}).get(str(seed), {}):
                continue
            base = base or parity.load_base(arguments.work / "model", dtype, "sdpa", "cuda")
            began = time.perf_counter()
            messages = [json.loads(row)["messages"] for row in (folder / "data/train.jsonl").read_text().splitlines()]
            batches = parity.Batches(arguments.work / "model", folder / "data")
            model = parity.load_adapter(base, folder / "first")
            log, _ = parity.run_trainer(model, batches, messages, parity.SETTINGS, steps, name == "float32", "cuda", folder / f"peer-{name}")
            base = model.unload()
            results["losses"].setdefault(line, {}).setdefault(str(seed), {})[name] = [float(f"{loss:.6g}") for loss in log["loss"]]
            results.setdefault("made with", {})[line] = made_with
            keep(arguments, results)
            print(f"{name}, {line}, seed {seed}: {time.perf_counter() - began:.0f} s, loss {log['loss'][0]:.4f} -> {log['loss'][-1]:.4f}", flush=True)
        base = model = None
        parity.give_back()


def ours(arguments, results):
    for line, seed, steps, folder in runs(arguments):
        began = time.perf_counter()
        flags = ["--adapter", folder / "first", "--lora-r", parity.SETTINGS["rank"], "--lora-alpha", parity.SETTINGS["alpha"], "--optim", "adamw"]
        model, rows = arguments.work / "model", folder / "data/train.jsonl"
        log = parity.run_binary(arguments.binary, model, rows, folder / "ours", parity.SETTINGS, steps, "cuda", *flags, is_quiet=True)
        results["losses"].setdefault(line, {}).setdefault(str(seed), {})[arguments.name] = [float(f"{loss:.6g}") for loss in log["loss"]]
        keep(arguments, results)
        print(f"{arguments.name}, {line}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)


def keep(arguments, results):
    arguments.recorded.write_text(json.dumps(results).replace('}, "', '},\n"').replace('], "', '],\n "') + "\n")


def compare(arguments, results):
    """Loss minus float32's, in thousandths: means over seeds and steps."""
    failed, ratios = False, {}
    print(f"{'loss minus float32, in thousandths':36} {'':>10} {'mean':>8} {'± error':>8} {'rms':>8} {'steps 6 to 10':>14} {'last ten':>9} {'largest':>8}")
    for line, seeds in results["losses"].items():
        found = {}
        for name in ("bfloat16", arguments.name):
            apart = [[1000 * (a - b) for a, b in zip(runs[name], runs["float32"])] for runs in seeds.values() if name in runs and "float32" in runs]
            if not apart:
                print(f"{line:36} {name:>10} not recorded beside float32")
                continue
            means, everything = [statistics.mean(one) for one in apart], [value for one in apart for value in one]
            error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else float("nan")
            rms = math.sqrt(statistics.mean(value * value for value in everything))
            early, late = (statistics.mean(statistics.mean(one[part]) for one in apart) for part in (slice(5, 10), slice(-10, None)))
            found[name] = rms
            shown = {"bfloat16": "peer"}.get(name, name)
            print(f"{line:36} {shown:>10} {statistics.mean(means):8.1f} {error:8.1f} {rms:8.1f} {early:14.1f} {late:9.1f} {max(map(abs, everything)):8.1f}")
        if len(found) == 2:
            ratios[line] = found[arguments.name] / found["bfloat16"]
    # A new adapter is where rounding costs most: half of the peer's distance there. Lines of one or two seeds are uncertain by as much as they differ: 1.5 of it there, as in
    # parity_grid.py, and not more than it in their geometric mean.
    for line, ratio in ratios.items():
        bound = 0.5 if "new adapter" in line else 1.5
        failed |= not ratio <= bound
        print(f"{line}: ours is {ratio:.2f} times as far from float32 as the peer, {bound} allowed")
    others = [ratio for line, ratio in ratios.items() if "new adapter" not in line]
    mean = math.exp(statistics.mean(map(math.log, others))) if others else 0.0
    print(f"geometric mean of the lines with a drawn adapter: {mean:.2f}, 1 allowed")
    return 1 if failed or not mean <= 1.0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda words: words.split(",")  # noqa: E731
    parser.add_argument("--binary", type=Path, default=Path("target/release/model-garden"))
    parser.add_argument("--name", default="ours", help="what to call this binary in the record")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--line", action="append", choices=LINES, help="only this one; may be repeated")
    parser.add_argument("--phase", type=listed, default=list(PHASES))
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    arguments = parser.parse_args()
    arguments.work, arguments.binary = arguments.work.resolve(), arguments.binary.resolve()
    results = json.loads(arguments.recorded.read_text()) if arguments.recorded.exists() else {"losses": {}}
    code = 0
    for phase in PHASES:
        if phase in arguments.phase:
            code = {"make": make, "peer": peer, "ours": ours, "compare": compare}[phase](arguments, results) or 0
    sys.exit(code)


if __name__ == "__main__":
    main()
