#!/usr/bin/env python3
"""Runs compare.py on the tiny model and on those of models.py, which it makes: one line per model and run.

usage: compare_models.py --binary target/release/model-garden --work FOLDER [--only NAME ...]

FOLDER/NAME/result.json has everything that was compared. Exits 1 if anything is further apart than compare.py allows, and 2 if a run failed. Needs the packages
of requirements.txt. Two or three minutes on one core.
"""

import argparse
import sys
from pathlib import Path

from compare import DEFAULT_RUNS, compare
from models import MODELS, write_model
from random_checkpoint import TINY

LEARNING_RATE = 2e-3
# Runs and steps. A tied head cannot be saved apart from the embedding.
RUNS = {
    "tiny-model": (DEFAULT_RUNS, 50),
    "untied": (["all-linear, rates", "merger, head and norms saved"], 30),
    "odd": (["vision, rslora, tokens", "all-linear, rates", "merger saved, tokens"], 30),
    "hub": (["all-linear, rates", "merger, head and norms saved"], 30),
}
assert RUNS.keys() == {"tiny-model", *MODELS}


def line(model, name, parts):
    steps, weights, answers = parts["steps"], parts["weights"], parts["answers"]
    figures = {
        "loss, first 10 steps": steps["loss, first 10 steps"], "loss": steps["loss"], "gradient norm": steps["gradient norm"], "learning rate": steps["learning rate"],
        "weights": weights["weights"], "worst": weights["weights, worst matrix"], "evaluation": answers["evaluation loss"],
        "token accuracy": steps["token accuracy"], "in evaluations": answers["evaluation token accuracy"], "merged logits": answers["merged logits"],
    }
    told = "; ".join(f"{figure} {value:.1e}" for figure, value in figures.items())
    same = "/".join(str(answers[key]) for key in answers if key.startswith("same answers"))
    first, last = steps["first loss"][0], steps["last loss"][0]
    return f"{model}: {name}: {told}; same answers {same} of {answers['prompts']}; {weights['matrices']} tensors, loss {first:.3f} to {last:.3f}, last accuracy {steps['last token accuracy'][0]:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="a folder for models, datasets, adapters and logs")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="MODEL")
    arguments = parser.parse_args()
    binary, work = arguments.binary.resolve(), arguments.work.resolve()
    broken, failed = [], []
    for model in arguments.only:
        runs, steps = RUNS[model]
        folder = TINY if model == "tiny-model" else work / model / "model"
        if model in MODELS:
            write_model(folder, model)
        result = compare(argparse.Namespace(binary=binary, work=work / model, model=folder.resolve(), steps=steps, learning_rate=LEARNING_RATE, only=runs))
        for name, parts in result["runs"].items():
            print(line(model, name, parts), flush=True)
        failed += [f"{model}: {name}" for name in result["failed"]]
        broken += [f"{model}: {what}" for what in result["broken"]]
    versions = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    print(f"compared with {versions}")
    for what in failed:
        print(f"failed: {what}")
    for what in broken:
        print(f"too far apart: {what}")
    sys.exit(2 if failed else bool(broken))


if __name__ == "__main__":
    main()
