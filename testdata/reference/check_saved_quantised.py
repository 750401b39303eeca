#!/usr/bin/env python3
"""Loads a 4-bit checkpoint that another program saved, with transformers and bitsandbytes, and compares logits.

usage: check_saved_quantised.py MODEL_FOLDER --batch FILE --logits FILE [--adapter FOLDER] [--same-as FOLDER] [--tolerance 1e-4]

The batch is a `batch.safetensors` as record.py writes it; the logits are a tensor `logits` [tokens, vocabulary] without
padding, rows one after the other, as that program computed them in float32. Prints how many modules are 4 bit and the
largest difference relative to the largest logit. With --same-as, also counts packed values that differ from those of
another 4-bit checkpoint. Exits 1 when logits or packed values differ or transformers left a tensor aside, 2 when something
cannot be read.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

from record import run
from record_quantised import load_base, quantised_modules, refuse_wrong_widths, widen


def load(arguments):
    model = load_base(arguments.model)
    widen(model)
    modules = quantised_modules(model)
    if not modules:
        raise ValueError("no module is 4 bit: is quantization_config in config.json?")
    for name in modules:
        if getattr(model.get_submodule(name).weight, "quant_state", None) is None:
            # transformers says nothing: a module the config does not skip and the file does not quantise.
            raise ValueError(f"{name} should be 4 bit by the config and is not in the file: skip it under its new name")
    refuse_wrong_widths(model)
    if arguments.adapter:
        model = PeftModel.from_pretrained(model, arguments.adapter)
    # In evaluation mode CPUs with AVX512-BF16 compute 4-bit products in bfloat16. Nothing here has dropout.
    return model.train(), modules, load_file(arguments.batch), load_file(arguments.logits)["logits"]


def tensors_of(folder):
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def differing(left, right):
    """Names of tensors that only one of two checkpoints has, or that have other bytes in it."""
    left, right = tensors_of(left), tensors_of(right)
    return sorted(
        name
        for name in left.keys() | right.keys()
        if name not in left or name not in right or left[name].shape != right[name].shape or not left[name].equal(right[name])
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the 4-bit checkpoint")
    parser.add_argument("--batch", type=Path, required=True)
    parser.add_argument("--logits", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, help="folder with adapter_config.json, if the logits are with an adapter")
    parser.add_argument("--same-as", type=Path, help="folder of a 4-bit checkpoint that should hold the same tensors")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    try:
        model, modules, batch, logits = load(arguments)
    except Exception as error:  # Whatever the libraries raise for a file that is missing or wrong.
        print(f"error: cannot load: {error}", file=sys.stderr)
        sys.exit(2)
    with torch.no_grad():
        expected = run(model, batch).logits[batch["attention_mask"].bool()]
    if expected.shape != logits.shape:
        print(f"error: expected logits {list(expected.shape)}, got {list(logits.shape)}", file=sys.stderr)
        sys.exit(1)
    error = ((logits.float() - expected).abs().max() / expected.abs().max()).item()
    print(f"{len(modules)} modules are 4 bit; max relative error {error:.2e}, tolerance {arguments.tolerance:.0e}")
    # Written so that a NaN fails.
    passed = error <= arguments.tolerance
    if arguments.same_as:
        names = differing(arguments.model, arguments.same_as)
        print(f"{len(names)} tensors differ from {arguments.same_as}{': ' + names[0] if names else ''}")
        passed = passed and not names
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
