#!/usr/bin/env python3
"""Loads an adapter with peft and compares the logits with those another program computed for the same batch.

usage: check_adapter.py --model FOLDER --adapter FOLDER --batch FILE --logits FILE [--tolerance 1e-4]

The batch is a `batch.safetensors` as record.py writes it; the logits are a tensor `logits` [tokens, vocabulary] without
padding, rows one after the other. Prints the largest difference relative to the largest logit. Exits 1 when that is above
the tolerance, or when peft did not take every tensor of the adapter (it only warns, and then the adapter does nothing),
and 2 when something cannot be read.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import Qwen2_5_VLForConditionalGeneration

from record import run


def load(arguments):
    """The model with its adapter, the model's adapter tensors, and the files to compare with."""
    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        arguments.model, dtype=torch.float32, attn_implementation="eager"
    )
    model = PeftModel.from_pretrained(base, arguments.adapter).eval()
    adapter = load_file(arguments.adapter / "adapter_model.safetensors")
    return model, adapter, load_file(arguments.batch), load_file(arguments.logits)["logits"]


def untaken(model, adapter):
    """Names of tensors that are in the file and not in the model with the same values, or the other way round."""
    taken = get_peft_model_state_dict(model)
    names = taken.keys() | adapter.keys()
    return sorted(n for n in names if n not in taken or n not in adapter or not torch.equal(taken[n], adapter[n].float()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base checkpoint")
    parser.add_argument("--adapter", type=Path, required=True, help="folder with adapter_config.json")
    parser.add_argument("--batch", type=Path, required=True)
    parser.add_argument("--logits", type=Path, required=True)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    try:
        model, adapter, batch, logits = load(arguments)
    except Exception as error:  # Whatever the libraries raise for a file that is missing or wrong.
        print(f"error: cannot load: {error}", file=sys.stderr)
        sys.exit(2)

    left = untaken(model, adapter)
    if left:
        print(f"error: {len(left)} adapter tensors do not fit the model, the first is {left[0]}", file=sys.stderr)
        sys.exit(1)
    with torch.no_grad():
        expected = run(model, batch).logits[batch["attention_mask"].bool()]
        with model.disable_adapter():
            base = run(model, batch).logits[batch["attention_mask"].bool()]
    if expected.shape != logits.shape:
        print(f"error: expected logits {list(expected.shape)}, got {list(logits.shape)}", file=sys.stderr)
        sys.exit(1)
    scale = expected.abs().max()
    error = ((logits.float() - expected).abs().max() / scale).item()
    effect = ((base - expected).abs().max() / scale).item()
    print(f"max relative error {error:.2e}, tolerance {arguments.tolerance:.0e}; the adapter changes logits by {effect:.2e}")
    # Written so that a NaN fails.
    sys.exit(0 if error <= arguments.tolerance else 1)


if __name__ == "__main__":
    main()
