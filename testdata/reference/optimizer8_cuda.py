#!/usr/bin/env python3
"""Records thirty steps of bitsandbytes' 8-bit AdamW on a GPU: its own CUDA kernels, which optimizer8.py can only follow by their source.

usage: optimizer8_cuda.py --out FOLDER [--seed 0] [--run cuda|cpu|rules]

Writes optimizer8_cuda.safetensors and optimizer8_cuda.json, laid out as optimizer8.py's with RUN `cuda` (README.md). The class is the one that transformers takes for
`optim="adamw_bnb_8bit"`, with 8 bits for tensors of any size. Prints how far the rules of quantised_rules.py are from it.

`--run cpu` (the library's CPU code) and `--run rules` write the same files without a GPU, to try what reads them. The recording that is kept is from a GPU.
"""

import argparse
import json
import os
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import bitsandbytes
import torch
from safetensors.torch import save_file

import optimizer8
import quantised_rules as rules
from optimizer8 import BETA1, BETA2, EPSILON, GRADIENTS, RATE, gradient_of

STEPS = 30
RECORDED = (1, 10, 20, STEPS)
TENSORS = {
    # name: shape, weight decay
    "matrix": ((47, 47), 0.05),
    "blocks": ((8, rules.NESTED_BLOCK), 0.0),
    "short": ((3, 67), 0.05),
    "scales": ((2637,), 0.0),
}
# No gradient at all in this step, counted from 1: moments shrink, and parameters go on with them.
STEP_OF_ZEROS = 7


def draw(seed, number, name):
    """Start and gradients as optimizer8.py draws them. One block of `blocks` never has any; in `scales` blocks lie ten powers of ten apart."""
    start, gradients = optimizer8.draw(seed, 100 + number, TENSORS[name][0])
    if name == "blocks":
        gradients[:, 3] = 0
    if name == "scales":
        powers = torch.arange(start.numel()) // rules.NESTED_BLOCK % 11 - 7.0
        gradients = (gradients.float() * 10**powers).bfloat16() + 0
    return start, gradients


def schedule(seed):
    generator = torch.Generator().manual_seed(seed * 1000 + 998)
    factors = 2.0 ** torch.randint(-3, 3, (STEPS,), generator=generator)
    factors[STEP_OF_ZEROS - 1] = 0
    return [RATE * (STEPS - step) / STEPS for step in range(STEPS)], factors.tolist()


def run_library(drawn, rates, factors, device):
    parameters = {name: torch.nn.Parameter(start.float().to(device)) for name, (start, _) in drawn.items()}
    groups = [{"params": [parameter], "weight_decay": TENSORS[name][1]} for name, parameter in parameters.items()]
    optimizer = bitsandbytes.optim.AdamW(groups, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON, optim_bits=8, min_8bit_size=0)
    after = {}
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = rates[step - 1]
        for name, parameter in parameters.items():
            parameter.grad = gradient_of(drawn[name][1], factors, step).to(device)
        optimizer.step()
        for name, parameter in parameters.items():
            state = optimizer.state[parameter]
            assert state["state1"].dtype == torch.uint8, f"{name} has moments of {state['state1'].dtype}"
            parts = {part: state[part].cpu().clone() for part in ("state1", "state2", "absmax1", "absmax2")}
            after[step, name] = {"parameter": parameter.detach().cpu().clone(), **parts}
    return after


def run_rules(drawn, rates, factors):
    after = {}
    for name, (start, gradients) in drawn.items():
        parameter = start.float()
        optimizer = rules.AdamW8(parameter, "nearest", BETA1, BETA2, EPSILON)
        for step in range(1, STEPS + 1):
            parameter = optimizer.step(parameter, gradient_of(gradients, factors, step), rates[step - 1], TENSORS[name][1])
            codes = [codes.view(start.shape) for codes in optimizer.codes]
            after[step, name] = {
                "parameter": parameter.clone(), "state1": codes[0], "state2": codes[1], "absmax1": optimizer.absmax[0], "absmax2": optimizer.absmax[1]
            }
    return after


def compare(found, expected, drawn):
    for name, (start, _) in drawn.items():
        for step in RECORDED:
            left, right = found[step, name], expected[step, name]
            change = (left["parameter"] - right["parameter"]).norm() / (right["parameter"] - start.float()).norm()
            listed = f"change of parameters {change:.1e}"
            for part in ("state1", "state2"):
                # Codes of a block whose maximum is zero stand for zero, whatever they are.
                scale = right[f"absmax{part[-1]}"].repeat_interleave(rules.NESTED_BLOCK)[: start.numel()]
                apart = (left[part].int() - right[part].int()).abs().flatten()[scale > 0]
                listed += f", {part} codes {(apart > 0).float().mean():.1e} differ by up to {apart.max()}"
            print(f"rules, recorded: {name:7} step {step:2} {listed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the two files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", choices=("cuda", "cpu", "rules"), default="cuda")
    arguments = parser.parse_args()
    if arguments.run == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --run cpu or rules only tries the files")
    drawn = {name: draw(arguments.seed, number, name) for number, name in enumerate(TENSORS)}
    rates, factors = schedule(arguments.seed)
    by_rules = run_rules(drawn, rates, factors)
    recorded = by_rules if arguments.run == "rules" else run_library(drawn, rates, factors, arguments.run)
    compare(by_rules, recorded, drawn)

    saved = {}
    for name, (start, gradients) in drawn.items():
        saved |= {f"{name}.start": start, f"{name}.gradients": gradients}
        for step in RECORDED:
            parts = recorded[step, name] if step == STEPS else {"parameter": recorded[step, name]["parameter"]}
            saved |= {f"cuda.{name}.step_{step}.{part}": tensor for part, tensor in parts.items()}
    about = {
        "format": 1, "seed": arguments.seed, "steps": STEPS, "learning_rates": rates, "gradient_factors": factors,
        "gradient_of_step": [step % GRADIENTS for step in range(STEPS)], "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON, "block": rules.NESTED_BLOCK,
        "tensors": [
            {"name": name, "shape": list(shape), "weight_decay": decay, "steps_without_gradient": [], "recorded_after_steps": list(RECORDED)}
            for name, (shape, decay) in TENSORS.items()
        ],
        "made_with": {
            "run": arguments.run, "device": torch.cuda.get_device_name() if arguments.run == "cuda" else "cpu",
            "bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__,
        },
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "optimizer8_cuda.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in saved.items()}, file)
    (arguments.out / "optimizer8_cuda.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    print(f"{file} {file.stat().st_size / 1000:.1f} kB")


if __name__ == "__main__":
    main()
