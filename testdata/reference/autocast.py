#!/usr/bin/env python3
"""Measures what bf16 costs transformers and peft themselves on the recorded cases: the yardstick for our bf16 devices.

usage: autocast.py [--recorded FOLDER]  (recorded, or recorded_quantised)

Each case is computed as people train: under bf16 autocast, with the frozen base in float32 and in bf16 (adapters stay
float32). Printed is how far that is from the recorded float32 numbers: logits and gradients relative to their norm, the
smallest cosine between a parameter's gradient and the recorded one, the loss, losses and gradient norms of the training
steps, and the trained parameters relative to what training changed.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from safetensors.torch import load_file

import record

plain_run = record.run


def run(model, batch):
    # A context of its own for each pass: it keeps what it has rounded, and would miss updates.
    with torch.autocast("cpu", torch.bfloat16):
        return plain_run(model, batch)


def apart(found, expected):
    found, expected = found.double().flatten(), expected.double().flatten()
    size = expected.norm()
    return ((found - expected).norm() / (size if size > 0 else 1)).item()


def cosine(found, expected):
    found, expected = found.double().flatten(), expected.double().flatten()
    return (found @ expected / (found.norm() * expected.norm())).item()


def load(case, folder, base):
    """The model of a case, with what is frozen in this type and products in bf16."""
    if folder.parent.name == "recorded_quantised":
        import record_quantised

        quantisation = next(q for other, q in record_quantised.fixed_cases() if other.name == folder.name)
        model, _ = record_quantised.load_model(quantisation, folder)
        for name in record_quantised.quantised_modules(model):
            model.get_submodule(name).compute_dtype = torch.bfloat16
    else:
        model = record.load_model(case, folder)
    if base == torch.bfloat16:
        for parameter in model.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.to(base)
    return model


def measure(folder, base):
    about = json.loads((folder / "case.json").read_text())
    training = SimpleNamespace(**about["training"], learning_rate=about["training"]["learning_rates"][0])
    case = SimpleNamespace(name=folder.name, lora=about["lora"], training=training)
    batches = [load_file(folder / name) for name in about["batches"]]
    model = load(case, folder, base)
    expected, gradients = about["expected"], load_file(folder / "gradients.safetensors")
    output = run(model, batches[0])
    output.loss.backward()
    real = batches[0]["attention_mask"].bool()
    logits = apart(output.logits.detach()[real].float(), load_file(folder / "outputs.safetensors")["logits"])
    loss = abs(output.loss.item() - expected["loss"]) / expected["loss"]
    named = [(p.grad, gradients[name]) for name, p in record.trainable_parameters(model).items() if name in gradients]
    worst, least = max(apart(*pair) for pair in named), min(cosine(*pair) for pair in named)
    whole = apart(*(torch.cat([pair[side].flatten().float() for pair in named]) for side in (0, 1)))
    model.zero_grad(set_to_none=True)
    before = {name: p.detach().clone() for name, p in record.trainable_parameters(model).items()}
    found, _ = record.train(case, model, batches)
    losses, norms = (record.largest_change(found[name], expected[name]) for name in ("losses", "gradient_norms"))
    after, wanted = record.trainable_parameters(model), load_file(folder / "trained.safetensors")
    off = sum((after[name].detach() - wanted[name]).double().pow(2).sum() for name in wanted)
    trained = (off / sum((wanted[name] - before[name]).double().pow(2).sum() for name in wanted)).sqrt().item()
    figures = f"logits {logits:.1e}  loss {loss:.1e}  gradient {worst:.1e} all {whole:.1e} cosine {least:.5f}"
    print(f"{folder.name:20} {str(base):15} {figures}  losses {losses:.1e}  norms {norms:.1e}  trained {trained:.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path, default=Path(__file__).resolve().parent / "recorded", help="folder of cases")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Its bf16 products use instructions that some processors claim and do not have.
    torch.backends.mkldnn.enabled = False
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # The rates as they were recorded, whatever the schedule was.
    record.learning_rates, record.run = lambda training: training.learning_rates, run
    for folder in sorted(path.parent for path in arguments.recorded.glob("*/case.json")):
        is_full = json.loads((folder / "case.json").read_text())["lora"] is None
        for base in [torch.float32] if is_full else [torch.float32, torch.bfloat16]:
            measure(folder, base)


if __name__ == "__main__":
    main()
