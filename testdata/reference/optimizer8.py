#!/usr/bin/env python3
"""Records twenty steps of bitsandbytes' AdamW8bit, for an optimizer that must follow it.

usage: optimizer8.py --out FOLDER [--seed 0]

Writes optimizer8.safetensors and optimizer8.json (README.md lists the tensors). Two runs of the same gradients: `cpu` is
the library itself, whose CPU code rounds the moments by a coarse table; `nearest` is AdamW8 of quantised_rules.py in
float32, written after the library's CUDA kernels, which round to the nearest code. Prints how far the same rules in other
arithmetic come from either: what a correct optimizer can be expected to reach.
"""

import argparse
import json
import os
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import bitsandbytes
import torch
from safetensors.torch import save_file

import quantised_rules as rules

STEPS = 20
GRADIENTS = 3  # different ones per tensor; steps take them in turn, each with a factor of its own
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
RATE = 2e-3
SMALLEST_8BIT = 4096  # values; a smaller tensor has moments in float32

TENSORS = {
    # name: shape, weight decay, steps without a gradient, steps after which everything is recorded
    "matrix": ((67, 67), 0.05, (), (1, STEPS)),
    "boundary": ((64, 64), 0.0, (3, 8), (STEPS,)),
    "below": ((63, 65), 0.05, (3, 8), (STEPS,)),
    "vector": ((129,), 0.0, (), (1, 5, STEPS)),
}


def draw(seed, number, shape):
    """Start and gradients. One value in twenty has none at all.

    Sizes lie within two powers of ten of each other: where a second moment becomes the code of zero and the first does not,
    the next step is divided by almost nothing, and no two runs agree (nor would one want such a step).
    """
    generator = torch.Generator().manual_seed(seed * 1000 + number)
    start = (0.5 * torch.randn(shape, generator=generator)).bfloat16()
    size = 10 ** torch.empty(shape).uniform_(-2, 0, generator=generator)
    size[torch.rand(shape, generator=generator) < 0.05] = 0
    sign = torch.randint(0, 2, (GRADIENTS, *shape), generator=generator) * 2 - 1
    gradients = torch.empty(sign.shape).uniform_(0.5, 1.5, generator=generator) * sign * size
    # Adding zero makes -0 a +0: by its sign bit the moment of a gradient -0 would become a small negative number.
    return start, gradients.bfloat16() + 0


def schedule(seed):
    """Rate and gradient factor of every step. Both are float32, so that the product with a gradient is the same everywhere."""
    generator = torch.Generator().manual_seed(seed * 1000 + 999)
    factors = 2.0 ** torch.randint(-3, 3, (STEPS,), generator=generator)
    return [RATE * (STEPS - step) / STEPS for step in range(STEPS)], factors.tolist()


def gradient_of(gradients, factors, step):
    return gradients[(step - 1) % GRADIENTS].float() * factors[step - 1]


def run_library(drawn, rates, factors):
    """The library's own optimizer. Returns what is recorded after a step, by step and tensor."""
    parameters = {name: torch.nn.Parameter(start.float()) for name, (start, _) in drawn.items()}
    groups = [{"params": [p], "weight_decay": TENSORS[name][1]} for name, p in parameters.items()]
    optimizer = bitsandbytes.optim.AdamW8bit(groups, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON)
    after = {}
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = rates[step - 1]
        for name, parameter in parameters.items():
            skipped = step in TENSORS[name][2]
            parameter.grad = None if skipped else gradient_of(drawn[name][1], factors, step)
        optimizer.step()
        for name, parameter in parameters.items():
            state = optimizer.state[parameter]
            found = {part: state[part].clone() for part in ("state1", "state2", "absmax1", "absmax2") if part in state}
            after[step, name] = {"parameter": parameter.detach().clone(), **found}
    return after


def run_rules(drawn, rates, factors, rounding, dtype):
    """The same with the rules, for the tensors that have 8-bit moments."""
    after = {}
    for name, (start, gradients) in drawn.items():
        if start.numel() < SMALLEST_8BIT:
            continue
        parameter = start.to(dtype)
        optimizer = rules.AdamW8(parameter, rounding, BETA1, BETA2, EPSILON)
        for step in range(1, STEPS + 1):
            if step not in TENSORS[name][2]:
                gradient = gradient_of(gradients, factors, step).to(dtype)
                parameter = optimizer.step(parameter, gradient, rates[step - 1], TENSORS[name][1])
            codes = [codes.view(start.shape) for codes in optimizer.codes]
            after[step, name] = {
                "parameter": parameter.float(),
                "state1": codes[0],
                "state2": codes[1],
                "absmax1": optimizer.absmax[0].float(),
                "absmax2": optimizer.absmax[1].float(),
            }
    return after


def compare(title, found, expected, drawn):
    """How far apart two runs are after the last step."""
    for name, (start, _) in drawn.items():
        if (STEPS, name) not in found:
            continue
        left, right = found[STEPS, name], expected[STEPS, name]
        change = (left["parameter"] - right["parameter"]).norm() / (right["parameter"] - start.float()).norm()
        largest = (left["parameter"] - right["parameter"]).abs().max() / RATE
        listed = f"change of parameters {change:.1e}, largest {largest:.1e} rates"
        for part in ("state1", "state2"):
            apart = (left[part].int() - right[part].int()).abs()
            listed += f", {part} codes {(apart > 0).float().mean():.1e} differ by up to {apart.max()}"
        print(f"{title:34} {name:9} {listed}")


def check_float_moments(drawn, rates, factors, after):
    """Tensors below 4096 values follow plain AdamW: the library against torch."""
    for name, (start, gradients) in drawn.items():
        if start.numel() >= SMALLEST_8BIT:
            continue
        parameter = torch.nn.Parameter(start.float())
        decay = TENSORS[name][1]
        optimizer = torch.optim.AdamW([parameter], betas=(BETA1, BETA2), eps=EPSILON, weight_decay=decay, foreach=False)
        for step in range(1, STEPS + 1):
            optimizer.param_groups[0]["lr"] = rates[step - 1]
            skipped = step in TENSORS[name][2]
            parameter.grad = None if skipped else gradient_of(gradients, factors, step)
            optimizer.step()
        found = after[STEPS, name]["parameter"]
        change = (found - parameter.detach()).norm() / (parameter.detach() - start.float()).norm()
        print(f"{'library, torch AdamW':34} {name:9} change of parameters {change:.1e}")


def record(seed, folder):
    drawn = {name: draw(seed, number, about[0]) for number, (name, about) in enumerate(TENSORS.items())}
    rates, factors = schedule(seed)
    library = run_library(drawn, rates, factors)
    nearest = run_rules(drawn, rates, factors, "nearest", torch.float32)
    check_float_moments(drawn, rates, factors, library)
    compare("rules for cpu in float32, library", run_rules(drawn, rates, factors, "cpu", torch.float32), library, drawn)
    exact = run_rules(drawn, rates, factors, "nearest", torch.float64)
    compare("nearest in float64, in float32", exact, nearest, drawn)
    compare("nearest, library", nearest, library, drawn)

    saved = {"first_map": rules.AdamW8.FIRST, "second_map": rules.AdamW8.SECOND}
    for name, (start, gradients) in drawn.items():
        saved |= {f"{name}.start": start, f"{name}.gradients": gradients}
        for step in TENSORS[name][3]:
            for run, after in (("cpu", library), ("nearest", nearest)):
                parts = after.get((step, name), {})
                if parts and start.numel() < SMALLEST_8BIT and name != "vector":
                    parts = {"parameter": parts["parameter"]}  # two float moments would double the file
                saved |= {f"{run}.{name}.step_{step}.{part}": tensor for part, tensor in parts.items()}
    about = {
        "format": 1,
        "seed": seed,
        "steps": STEPS,
        "learning_rates": rates,
        "gradient_factors": factors,
        "gradient_of_step": [step % GRADIENTS for step in range(STEPS)],
        "beta1": BETA1,
        "beta2": BETA2,
        "epsilon": EPSILON,
        "block": rules.NESTED_BLOCK,
        "smallest_8bit": SMALLEST_8BIT,
        "tensors": [
            {
                "name": name,
                "shape": list(shape),
                "weight_decay": decay,
                "steps_without_gradient": list(without),
                "recorded_after_steps": list(recorded),
                "moments": "float32" if drawn[name][0].numel() < SMALLEST_8BIT else "8bit",
            }
            for name, (shape, decay, without, recorded) in TENSORS.items()
        ],
        "made_with": {"bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__.split("+")[0]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in saved.items()}, folder / "optimizer8.safetensors")
    (folder / "optimizer8.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    print(f"optimizer8.safetensors {(folder / 'optimizer8.safetensors').stat().st_size / 1000:.1f} kB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets the two files")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record(arguments.seed, arguments.out)


if __name__ == "__main__":
    main()
