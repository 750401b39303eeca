#!/usr/bin/env python3
"""Makes a random Qwen2.5-VL checkpoint of about 2 GB and an adapter, merges them, and prints the most memory that was held.

usage: export.py [--layers 12] [--folder FOLDER] [--threads 2] [--program target/release/model-garden]

Needs no packages. Without --folder all of it is made in a temporary one and removed. Prints JSON: seconds and peak resident bytes (pages of mapped files
count) of `export --no-verify` and of `export`, with what the proof says. Exits 1 if writing alone held more than 100 MB.
"""
import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from loading import ROOT, tensors, write

RANK = 16


def write_adapter(folder, layers):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        linears = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        json.dump({"peft_type": "LORA", "r": RANK, "lora_alpha": 32, "base_model_name_or_path": "base",
                   "target_modules": r".*\.language_model\..*\.(" + "|".join(linears) + ")"}, file)
    header, end, scales = {}, 0, []
    for name, shape in tensors(layers):
        if not name.startswith("model.layers.") or not name.endswith("_proj.weight"):
            continue
        module = name.removesuffix(".weight").replace("model.", "model.language_model.", 1)
        for side, size, scale in (("A", [RANK, shape[1]], 0.02), ("B", [shape[0], RANK], 0.002)):
            length = 4 * size[0] * size[1]
            header[f"base_model.model.{module}.lora_{side}.weight"] = {"dtype": "F32", "shape": size, "data_offsets": [end, end + length]}
            end += length
            scales.append((length // 4, scale))
    random.seed(2)
    noise = [random.gauss(0, 1) for _ in range(1 << 16)]
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for count, scale in scales:
            block = struct.pack(f"<{len(noise)}f", *(scale * value for value in noise))
            start = 4 * random.randrange(len(noise))
            data = (block[start:] + block[:start]) * (4 * count // len(block) + 1)
            file.write(data[: 4 * count])


def export(program, folder, threads, *more):
    """What one run says, its seconds and its peak: a process of its own, so that peaks do not mix."""
    out = os.path.join(folder, "merged")
    shutil.rmtree(out, ignore_errors=True)
    command = [program, "export", "--base-model", os.path.join(folder, "base"), "--adapter", os.path.join(folder, "adapter"),
               "--output-dir", out, "--threads", str(threads), "--json", *more]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    told = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"error: export ended with {status}")
    return {"seconds": round(time.monotonic() - begin, 1), "peak_resident_bytes": usage.ru_maxrss * 1024, "told": told}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder")
    parser.add_argument("--program", default=os.path.join(ROOT, "target", "release", "model-garden"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        if not os.path.exists(os.path.join(folder, "base", "model.safetensors")):
            write(os.path.join(folder, "base"), arguments.layers)
            write_adapter(os.path.join(folder, "adapter"), arguments.layers)
        written = export(arguments.program, folder, arguments.threads, "--no-verify")
        proven = export(arguments.program, folder, arguments.threads)
    print(json.dumps({"written": written, "proven": proven}, indent=2))
    sys.exit(written["peak_resident_bytes"] > 100e6)


if __name__ == "__main__":
    main()
