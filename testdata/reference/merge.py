#!/usr/bin/env python3
"""Records the weights that peft's merge_and_unload makes of the recorded tiny models and their adapters.

usage: merge.py --out FOLDER

Each model is loaded in the type that its file has, as anybody would, and the adapter in float32, as peft does by default.
Writes NAME.safetensors with the weights that an adapter was merged into, under their names in transformers 5.
"""

import argparse
from pathlib import Path

import torch
import transformers
from peft import PeftModel
from safetensors.torch import save_file
from transformers import Qwen2_5_VLForConditionalGeneration

HERE = Path(__file__).parent
# A base of 16 bits with hub names; rsLoRA on two files; tower, merger and decoder.
CASES = ["bfloat16", "two_images_rslora", "vision_lora"]


def merged_weights(folder):
    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype="auto", attn_implementation="eager")
    before = {name: value.clone() for name, value in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload()
    return {name: value for name, value in merged.state_dict().items() if not value.equal(before[name])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        weights = merged_weights(HERE / "recorded" / name)
        if not weights:
            raise SystemExit(f"error: {name}: the adapter changed nothing")
        save_file({key: value.contiguous() for key, value in weights.items()}, arguments.out / f"{name}.safetensors")
        print(f"{name}: {len(weights)} weights, {next(iter(weights.values())).dtype}")


if __name__ == "__main__":
    main()
