#!/usr/bin/env python3
"""Holds specification.py (float64, without padding) against recorded cases and says how far apart the two are.

usage: check_facts.py FOLDER [FOLDER ...]

A folder is a case, or holds cases. The figures are the rounding noise of the recorded float32 numbers: what a correct
float32 engine can be expected to reach, and far below what any mistake in a formula gives. Exits 1 above the tolerances.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from specification import Specification, image_starts, patch_positions, rope_positions, window_order

TOLERANCE = {"logits": 1e-5, "loss": 1e-6, "gradients": 1e-4, "losses": 1e-4, "norms": 1e-3, "trained": 5e-4}


def relative(found, expected):
    """Norm of the difference over the norm of what is expected."""
    difference, size = (found.double() - expected.double()).norm().item(), expected.double().norm().item()
    # A gradient can be exactly zero: an image in a row without labels.
    return difference / size if size > 0 else difference


def relative_list(found, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def check_tables(case, batch, outputs):
    """Whole numbers must be equal: window order, boundaries, patch positions, position ids."""
    grids = batch["image_grid_thw"].tolist() if "image_grid_thw" in batch else []
    tokens, row_starts = batch["packed.input_ids"].tolist(), batch["packed.row_starts"].tolist()
    found = {"packed.position_ids": list(zip(*rope_positions(tokens, row_starts, grids, case.config["image_token"])))}
    if grids:
        vision = case.config["vision"]
        order, starts = window_order(grids, vision["window_size"] // 2 // vision["patch_size"])
        found |= {"vision.window_index": order, "vision.window_starts": starts}
        found |= {"vision.image_starts": image_starts(grids), "vision.patch_positions": patch_positions(grids)}
    recorded = {**batch, **outputs}
    return [name for name, values in found.items() if not torch.equal(torch.tensor(values), recorded[name])]


def check_case(folder):
    case = Specification(folder)
    expected = case.case["expected"]
    batches = [load_file(folder / name) for name in case.case["batches"]]
    outputs = load_file(folder / "outputs.safetensors")
    wrong_tables = check_tables(case, batches[0], outputs)
    logits, loss, gradients = case.gradients(batches[0])
    recorded = load_file(folder / "gradients.safetensors")
    if set(recorded) != set(gradients):
        sys.exit(f"error: {folder}: other parameters have gradients: {sorted(set(recorded) ^ set(gradients))}")
    worst = max(gradients, key=lambda name: relative(recorded[name], gradients[name]))
    losses, norms = case.train(batches)
    trained = load_file(folder / "trained.safetensors")
    # What training changed, not what it left: relative to the update, a wrong update cannot hide behind a large weight.
    start = Specification(folder).trainable
    change = torch.cat([(p - start[name]).flatten() for name, p in case.trainable.items()]).detach()
    recorded_change = torch.cat([(trained[name] - start[name]).flatten() for name in case.trainable]).detach()
    figures = {
        "logits": relative(outputs["logits"], logits),
        "loss": abs(expected["loss"] - loss) / loss,
        "gradients": relative(recorded[worst], gradients[worst]),
        "losses": relative_list(expected["losses"], losses),
        "norms": relative_list(expected["gradient_norms"], norms),
        "trained": relative(recorded_change, change),
    }
    listed = "  ".join(f"{name} {value:.1e}" for name, value in figures.items())
    print(f"{folder.name:20} {listed}  worst gradient: {worst}", flush=True)
    for name in wrong_tables:
        print(f"{folder.name:20} {name} differs")
    return not wrong_tables and all(value <= TOLERANCE[name] for name, value in figures.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="+", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [path.parent for folder in arguments.folder for path in sorted(folder.rglob("case.json"))]
    if not cases:
        sys.exit("error: no case.json found")
    passed = [check_case(folder) for folder in cases]
    print(f"{sum(passed)} of {len(passed)} cases agree")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
