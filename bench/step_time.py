#!/usr/bin/env python3
"""How far `plan --step-time` is from what a step takes: estimates from a few layers beside `bench` of the whole model, in alternation.

    python3 bench/step_time.py --binary target/release/model-garden --device cpu
    python3 bench/step_time.py --binary model-garden --device cuda --cases 2:1024:256,8:1024:256 --options "--recompute none"

A case is rows:image tokens:text tokens of a micro-batch. Prints both times and their ratio for each round; a ratio above 1 is an estimate that is too long.
"""
import argparse
import json
import math
import subprocess


def run(binary, *words):
    done = subprocess.run([binary, *words, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"error: `{words[0]}` ended with {done.returncode}")
    return json.loads(done.stdout)


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--binary", default="target/release/model-garden")
    words.add_argument("--device", default="cpu")
    words.add_argument("--shape", default="qwen2.5-vl-3b")
    words.add_argument("--cases", default="1:64:64,1:256:256")
    words.add_argument("--options", default="--recompute none", help="of both commands")
    words.add_argument("--rounds", type=int, default=2)
    given = words.parse_args()
    usual = ["--shape", given.shape, "--device", given.device, "--gradient-accumulation", "1", *given.options.split()]
    for number in range(given.rounds):
        for case in given.cases.split(","):
            rows, image, text = map(int, case.split(":"))
            side = math.isqrt(image)
            if side * side != image:
                words.error(f"{image} image tokens are no square")
            picture = f"{28 * side}x{28 * side}" if image else "none"
            planned = run(given.binary, "plan", *usual, "--image", picture, "--text-tokens", str(text), "--batch-size", str(rows), "--step-time")["step_time"]
            measured = run(given.binary, "bench", *usual, "--image-tokens", str(image), "--text-tokens", str(text), "--batch-size", str(rows), "--steps", "2")
            estimated, seconds = planned["step_seconds"], measured["micro_step_ms"] / 1e3
            print(f"round {number + 1}, {given.shape} {case} {given.options}: estimated {estimated:.3f} s in {planned['measured_in_seconds']:.1f} s, measured {seconds:.3f} s, ratio {estimated / seconds:.2f}", flush=True)


if __name__ == "__main__":
    main()
