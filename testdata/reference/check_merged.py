#!/usr/bin/env python3
"""Loads an exported checkpoint with transformers and compares it with peft's base and adapter.

usage: check_merged.py EXPORTED --base FOLDER --adapter FOLDER [--batch FILE] [--tolerance 0.05]

Prints how many merged values are the same bits as those of peft's merge_and_unload (where the types agree), and how far logits are
from those of the base with its adapter, in float32, beside what the adapter changes. Without --batch the tokens are random. Exits 1 when the difference is above
TOLERANCE of that change, when a tensor is missing or left over, or when another token is best in more than a tenth of the places (random models have near ties).
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from transformers import Qwen2_5_VLForConditionalGeneration

from record import run


def load(folder, dtype):
    model, loading = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    if loading["missing_keys"] or loading["unexpected_keys"]:
        sys.exit(f"error: {folder} does not fit the model: {loading}")
    return model.eval()


def same_bits(exported, base, adapter):
    """Values that peft's merge has too, and all of them: of weights that the merge changed."""
    ours, before = exported.state_dict(), {name: value.clone() for name, value in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, adapter).merge_and_unload().state_dict()
    same = total = 0
    for name, value in merged.items():
        if not value.equal(before[name]) and value.dtype == ours[name].dtype:
            same, total = same + (value == ours[name]).sum().item(), total + value.numel()
    return same, total


def random_batch(config):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.text_config.vocab_size, (2, 24), generator=generator)
    tokens[tokens == config.image_token_id] += 1
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exported", type=Path)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--batch", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.05)
    arguments = parser.parse_args()
    transformers.logging.disable_progress_bar()
    same, total = same_bits(load(arguments.exported, "auto"), load(arguments.base, "auto"), arguments.adapter)
    exported = load(arguments.exported, torch.float32)
    adapted = PeftModel.from_pretrained(load(arguments.base, torch.float32), arguments.adapter).eval()
    batch = load_file(arguments.batch) if arguments.batch else random_batch(exported.config)
    with torch.no_grad():
        real = batch["attention_mask"].bool()
        got, expected = run(exported, batch).logits[real], run(adapted, batch).logits[real]
        with adapted.disable_adapter():
            base = run(adapted, batch).logits[real]
    size = expected.norm()
    difference, change = ((got - expected).norm() / size).item(), ((base - expected).norm() / size).item()
    agree = (got.argmax(-1) == expected.argmax(-1)).sum().item()
    print(f"{same} of {total} merged values are peft's bits; logits differ by {difference:.2e} of their size, "
          f"the adapter changes them by {change:.2e}; best tokens agree in {agree} of {len(got)}")
    # Written so that a NaN fails.
    sys.exit(0 if difference <= arguments.tolerance * change and agree >= 0.9 * len(got) else 1)


if __name__ == "__main__":
    main()
