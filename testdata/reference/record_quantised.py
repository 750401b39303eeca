#!/usr/bin/env python3
"""Records what transformers, peft and bitsandbytes compute for tiny Qwen2.5-VL models whose base weights are NF4.

usage: record_quantised.py --out FOLDER [--seed 0] [--only NAME ...]

Writes one folder per case, with the files record.py writes and `quantisation` in case.json (README.md). The base of a case is
either a plain checkpoint that is quantised while it is loaded, or one that transformers saved in 4 bit. Everything is
computed in float32 on one CPU thread.
"""

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import bitsandbytes
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file
from transformers import BitsAndBytesConfig, Qwen2_5_VLForConditionalGeneration

from cases import ALL_LINEARS, Case, Files, Lora, Row, Text, Training, Vision
from checkpoint import ADAPTER_FOLDER, write_inputs, write_json
from quantised_rules import BLOCK, NESTED_BLOCK
from record import made_with, record_step, record_training


@dataclass
class Quantisation:
    stored: bool  # the checkpoint itself is 4 bit; else it is quantised while it is loaded
    double: bool
    skip: list | None  # None leaves the choice to transformers: everything but the head
    dtype: str = "float32"  # the type the weights had when they were packed


def fixed_cases():
    return [
        (
            Case(
                name="nf4_on_load",
                about="a bfloat16 checkpoint, config and names as on the hub, decoder quantised on load with double "
                "quantisation, vision tower and head kept; blocks of down_proj cross rows",
                text=Text(hidden=64, intermediate=72, heads=4, kv_heads=1, vocabulary=90, mrope_section=(2, 3, 3)),
                files=Files(config="flat", names="hub", dtype="bfloat16"),
                lora=Lora(rank=3, alpha=6),
                batches=[[Row((3, (4, 6), 5)), Row((6,))]],
            ),
            Quantisation(stored=False, double=True, skip=["model.visual", "lm_head"]),
        ),
        (
            Case(
                name="nf4_odd_blocks",
                about="a float32 checkpoint quantised on load without double quantisation, also the blocks of the vision "
                "tower; merger and head kept; most matrices end in a short block; LoRA on everything, untied head",
                text=Text(hidden=36, intermediate=50, layers=1, heads=3, kv_heads=1, vocabulary=80, mrope_section=(1, 2, 3)),
                vision=Vision(depth=2, hidden=24, intermediate=28, heads=2),
                lora=Lora(rank=3, alpha=3, targets=ALL_LINEARS),
                training=Training(weight_decay=0.1, schedule="linear"),
                tied=False,
                batches=[[Row((4, (4, 6), 6)), Row((3, (2, 4), 5))], [Row((8,)), Row((11,))]],
            ),
            Quantisation(stored=False, double=False, skip=["lm_head", "model.visual.merger"]),
        ),
        (
            Case(
                name="nf4_saved",
                about="saved by transformers in 4 bit with double quantisation and no list of skipped modules: decoder, "
                "tower and merger are quantised; the merger has four nested blocks; LoRA on everything",
                text=Text(hidden=64, intermediate=64, layers=2, heads=4, kv_heads=2, vocabulary=80, mrope_section=(3, 3, 2)),
                vision=Vision(depth=1, hidden=64, intermediate=64, heads=2, full_blocks=()),
                lora=Lora(rank=2, alpha=4, targets=ALL_LINEARS),
                batches=[[Row((3, (4, 4), 5)), Row((6,))]],
            ),
            Quantisation(stored=True, double=True, skip=None),
        ),
        (
            Case(
                name="nf4_saved_bfloat16",
                about="saved by transformers in 4 bit from bfloat16, names as on the hub, vision tower and head in bfloat16; "
                "the backward pass sees weights rounded to bfloat16, the forward pass does not",
                text=Text(hidden=64, intermediate=64, layers=2, heads=2, kv_heads=1, vocabulary=80, mrope_section=(4, 6, 6)),
                files=Files(names="hub", dtype="bfloat16"),
                lora=Lora(rank=2, alpha=2),
                batches=[[Row((4, (4, 4), 5)), Row((7,))]],
            ),
            Quantisation(stored=True, double=True, skip=["model.visual", "lm_head"], dtype="bfloat16"),
        ),
    ]


def library_settings(quantisation):
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=quantisation.double,
        bnb_4bit_compute_dtype=torch.float32,
        llm_int8_skip_modules=quantisation.skip,
    )


def load_base(folder, settings=None, dtype=torch.float32):
    """A quantised model; with settings it is quantised here, without them the checkpoint is 4 bit already."""
    extra = {} if settings is None else {"quantization_config": settings}
    model, loading = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True, **extra
    )
    if loading["missing_keys"] or loading["unexpected_keys"]:
        raise SystemExit(f"error: {folder}: the checkpoint does not fit the model: {loading}")
    return model


def widen(model):
    """Plain weights of a 4-bit checkpoint keep the type of the file, whatever `dtype` says, while biases follow it."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()


def quantised_modules(model):
    return [name for name, module in model.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]


def refuse_wrong_widths(model):
    """The library's AVX-512 code takes wrong scales for these widths (README.md), which would be recorded as truth."""
    for name in quantised_modules(model):
        width = model.get_submodule(name).in_features
        if width % 16 == 0 and width % BLOCK:
            raise SystemExit(f"error: {name} has {width} inputs: bitsandbytes dequantises these wrongly on some CPUs")


def save_in_4bit(case, quantisation, folder):
    """Replaces the plain checkpoint by the 4-bit one that transformers makes of it."""
    model = load_base(folder, library_settings(quantisation), getattr(torch, quantisation.dtype))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, save_original_format=case.files.names == "hub")
    (folder / "generation_config.json").unlink(missing_ok=True)


def load_model(quantisation, folder):
    base = load_base(folder, None if quantisation.stored else library_settings(quantisation))
    widen(base)
    refuse_wrong_widths(base)
    modules = quantised_modules(base)
    for name in modules:
        state = base.get_submodule(name).weight.quant_state
        if state.dtype != getattr(torch, quantisation.dtype) or state.nested != quantisation.double:
            raise SystemExit(f"error: {folder}: {name} was not quantised as asked")
    # Training mode throughout: in evaluation mode CPUs with AVX512-BF16 compute 4-bit products in bfloat16.
    return PeftModel.from_pretrained(base, folder / ADAPTER_FOLDER, is_trainable=True).train(), modules


def record_case(case, quantisation, seed, folder):
    about = write_inputs(case, seed, folder)
    if quantisation.stored:
        save_in_4bit(case, quantisation, folder)
    batches = [load_file(folder / name) for name in about["batches"]]
    model, modules = load_model(quantisation, folder)
    first = record_step(model, batches[0], folder)
    trained = record_training(case, model, batches, folder)
    about["quantisation"] = {
        "type": "nf4",
        "stored": quantisation.stored,
        "double": quantisation.double,
        "block": BLOCK,
        "nested_block": NESTED_BLOCK,
        "skip_modules": quantisation.skip,
        "weight_dtype": quantisation.dtype,
        "quantised_modules": modules,
    }
    about["training"] = trained["training"]
    about["expected"] = {**first, **trained["expected"]}
    about["made_with"] = {**made_with(), "bitsandbytes": bitsandbytes.__version__}
    write_json(folder / "case.json", about)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    losses, rounding = about["expected"]["losses"], about["expected"]["rounding"]["losses"]
    rate = about["training"]["learning_rates"][0]
    figures = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}   rate {rate:g}   rounding {rounding:.0e}"
    print(f"{case.name:20} {size / 1000:7.1f} kB   {len(modules)} modules   {figures}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets one folder per case")
    parser.add_argument("--seed", type=int, default=0, help="other weights and batches")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="record only these cases")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    cases = fixed_cases()
    if arguments.only:
        unknown = set(arguments.only) - {case.name for case, _ in cases}
        if unknown:
            sys.exit(f"error: no case is named {', '.join(sorted(unknown))}")
        cases = [pair for pair in cases if pair[0].name in arguments.only]
    for case, quantisation in cases:
        folder = arguments.out / case.name
        if folder.exists():
            # Only a folder that this script wrote is replaced.
            if not (folder / "case.json").exists():
                sys.exit(f"error: {folder} exists and is not a recorded case")
            shutil.rmtree(folder)
        record_case(case, quantisation, arguments.seed, folder)


if __name__ == "__main__":
    main()
