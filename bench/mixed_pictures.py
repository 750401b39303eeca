#!/usr/bin/env python3
"""How far is the plan from the measured peak where pictures have many sizes?

    python3 bench/mixed_pictures.py --binary target/release/model-garden [--folder FOLDER]

Needs numpy and Pillow. Makes 100 files of 200 x 200 to 4000 x 3000 pixels of each kind (sequential JPEG files are decoded row by row, others as a whole; `mixed` has all
kinds), trains two epochs of the tiny model on each with small and large pictures, and prints a line of JSON for each run: planned and most resident bytes.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURES = 100
# Ending, mode and options of Pillow.
KINDS = {
    "sequential": (".jpg", "RGB", {"quality": 90}),
    "progressive": (".jpg", "RGB", {"quality": 90, "progressive": True}),
    "png": (".png", "RGB", {"compress_level": 1}),
    "png-opacity": (".png", "RGBA", {"compress_level": 1}),
    "webp": (".webp", "RGB", {"quality": 80, "method": 0}),
    "webp-lossless": (".webp", "RGB", {"lossless": True, "quality": 0, "method": 0}),
    "gif": (".gif", "P", {}),
    "tiff": (".tiff", "RGB", {"compression": "tiff_lzw"}),
    "bmp": (".bmp", "RGB", {}),
}
MIXED = "mixed"


def make(folder, kind):
    """The rows, and their pictures: noise that was made larger, so that files have the size of photographs."""
    import numpy
    from PIL import Image

    draw = random.Random(3)
    noise = numpy.clip(numpy.random.default_rng(3).normal(128, 40, (500, 667, 3)), 0, 255).astype(numpy.uint8)
    os.makedirs(os.path.join(folder, kind), exist_ok=True)
    rows = os.path.join(folder, f"{kind}.jsonl")
    with open(rows, "w", encoding="utf-8") as file:
        for number in range(PICTURES):
            size = draw.randint(200, 4000), draw.randint(200, 3000)
            ending, mode, options = KINDS[draw.choice(list(KINDS)) if kind == MIXED else kind]
            path = os.path.join(folder, kind, f"{number}{ending}")
            Image.fromarray(noise).resize(size, Image.BICUBIC).convert(mode).save(path, **options)
            file.write(json.dumps({"prompt": f"Picture {number}?", "image": path, "response": str(number % 10)}) + "\n")
    return rows


def train(binary, rows, output, max_pixels, batch_size):
    """What was planned and measured of a run."""
    shutil.rmtree(output, ignore_errors=True)
    command = [binary, "train-vision", "--base-model", os.path.join(ROOT, "testdata/tiny-model"), "--dataset", rows, "--output-dir", output]
    command += ["--epochs", "2", "--max-pixels", str(max_pixels), "--batch-size", str(batch_size), "--gradient-accumulation", "1", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    (whole,) = [row for row in json.loads(done.stdout)["memory"] if row["purpose"] == "all"]
    return whole["planned_bytes"], whole["measured_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--folder", help="for the pictures and runs [default: one that goes away]")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, MIXED], default=[*KINDS, MIXED])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(arguments.folder or temporary)
        for kind in arguments.kinds:
            rows = make(folder, kind)
            for max_pixels in (200_704, 1_003_520):
                for batch_size in (1, 4):
                    planned, measured = train(arguments.binary, rows, os.path.join(folder, "out"), max_pixels, batch_size)
                    told = {"kind": kind, "max_pixels": max_pixels, "batch_size": batch_size, "planned": planned, "measured": measured}
                    print(json.dumps({**told, "above_percent": round(100 * (planned / measured - 1), 1)}), flush=True)


if __name__ == "__main__":
    main()
