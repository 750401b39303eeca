"""The peer of parity_grid.py: transformers and peft on a base of 16 bits or NF4, with AdamW or its 8-bit form."""

import sys
import warnings
from pathlib import Path

import peft
import torch
import transformers

from parity import load_adapter, load_base

sys.path.append(str(Path(__file__).resolve().parent.parent / "reference"))
import quantised_rules as rules  # noqa: E402

# Smaller tensors have moments of 32 bits, as in bitsandbytes.
SMALLEST_8BIT = 4096


def prepare():
    """One thread and a quiet library; returns what the numbers are made with."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__, "peft": peft.__version__}


def pass_through_nf4(weight):
    """The weight as it comes back from NF4 with double quantisation; the mean of the scales is summed in float64."""
    packed, scales = rules.quantise_nf4(weight)
    offset = scales.double().mean().float()
    codes, nested = rules.quantise_scales(scales, offset)
    return rules.dequantise_nf4(packed, rules.dequantise_scales(codes, nested, offset), weight.numel()).view(weight.shape)


# By the checkpoint: the rules are written to be read, and take a while.
UNPACKED = {}


def unpack(base, folder):
    """Puts NF4's values into the linears of the decoder: the ones that --load-in-4bit packs."""
    linears = {name: module for name, module in base.named_modules() if isinstance(module, torch.nn.Linear) and ".language_model." in name}
    if folder not in UNPACKED:
        UNPACKED[folder] = {name: pass_through_nf4(module.weight.detach().cpu()) for name, module in linears.items()}
    for name, module in linears.items():
        module.weight.data = UNPACKED[folder][name].to(module.weight)


class AdamW8(torch.optim.Optimizer):
    """AdamW with 8-bit moments as bitsandbytes computes it on a GPU, which is what the binary does everywhere (its code for CPUs blurs small moments). `quantised_rules.AdamW8`
    has the same rules tensor by tensor; here blocks are rows of a matrix."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.maps = [rules.dynamic_map(signed=True), rules.dynamic_map(signed=False)]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, self.state[weight], group)

    def update(self, weight, state, group):
        (beta1, beta2), rate, keep = group["betas"], group["lr"], 1 - group["lr"] * group["weight_decay"]
        blocks = -(-weight.numel() // rules.NESTED_BLOCK)
        gradient = torch.zeros(blocks * rules.NESTED_BLOCK, device=weight.device)
        gradient[: weight.numel()] = weight.grad.flatten()
        gradient = gradient.view(blocks, rules.NESTED_BLOCK)
        is_small = weight.numel() < SMALLEST_8BIT
        first, second = (self.moment(state, which, gradient, is_small) for which in range(2))
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient * gradient
        state["steps"] = state.get("steps", 0) + 1
        correction1, correction2 = 1 - beta1 ** state["steps"], (1 - beta2 ** state["steps"]) ** 0.5
        change = first / (second.sqrt() + correction2 * group["eps"]) * (-rate * correction2 / correction1)
        weight.copy_((weight + change.flatten()[: weight.numel()].view_as(weight)) * keep)
        state["moments"] = [first, second] if is_small else [self.pack(first, 0), self.pack(second, 1)]

    def moment(self, state, which, gradient, is_small):
        if "moments" not in state:
            return torch.zeros_like(gradient)
        if is_small:
            return state["moments"][which]
        codes, scales = state["moments"][which]
        return self.maps[which].to(codes.device)[codes] * scales

    def pack(self, moment, which):
        code = self.maps[which].to(moment.device)
        scales = moment.abs().amax(dim=1, keepdim=True)
        codes = torch.bucketize(moment / scales.clamp(min=torch.finfo(torch.float32).tiny), rules.midpoints(code))
        return (rules.keep_sign(codes, moment, code) if which == 0 else codes), scales


def load(line, places, is_wide, device):
    """The model, and what more the trainer is given for these settings. Weights that are trained in full are float32 in both: rounded to bf16, most updates would be lost."""
    is_full = line["trained"] == "full"
    model = load_base(places.model, torch.float32 if is_wide or is_full else torch.bfloat16, "sdpa", device)
    if line["base"] == "nf4":
        unpack(model, places.model)
    if not is_full:
        model = load_adapter(model, places.first)

    def more(settings):
        return {"optimizer_cls_and_kwargs": (AdamW8, {"lr": settings["rate"]})} if line["optim"] == "adamw-8bit" else {}

    return model, more


@torch.no_grad()
def nudge(model):
    """Changes trained weights in their last bit: how far this leads says how chaotic a line is."""
    numbers = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.requires_grad:
            weight *= 1 + 1e-7 * torch.randn(weight.shape, generator=numbers).to(weight.device)
