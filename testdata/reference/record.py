#!/usr/bin/env python3
"""Records what transformers and peft compute for tiny random Qwen2.5-VL models, for tests that must agree with them.

usage: record.py --out FOLDER [--seed 0] [--only NAME ...] [--random COUNT]

Writes one folder per case: the checkpoint, adapter and batches a training program starts from, and the logits, loss,
gradients, intermediate values and training losses it should arrive at (README.md lists the files). Without --random the
cases are the fixed ones of cases.py; with it, COUNT others are drawn from the seed. Everything runs on one CPU thread in
float32 with plain ("eager") attention, so the same versions of the packages give the same files.
"""

import argparse
import math
import shutil
import sys
from pathlib import Path

import peft
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration, Trainer
from transformers.vision_utils import get_vision_attention_seqlens, get_vision_position_ids, get_vision_window_index

from cases import fixed_cases, random_case
from checkpoint import ADAPTER_FOLDER, token_types, write_inputs, write_json

# Rows are computed together, padded, and once more alone: rounding may differ, nothing else may.
PADDING_TOLERANCE = 1e-5
# Training is repeated from starting parameters that are off by this much, relative to each value. How far losses and
# gradient norms then move is the noise to expect of any float32 engine; more than this and the case is of no use.
NUDGE = 1e-6
ROUNDING_LIMIT = {"losses": 1e-5, "gradient_norms": 1e-4}


def load_model(case, folder):
    """Loads what was written, so that the numbers belong to the files and not to what they were made from."""
    model, loading = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if loading["missing_keys"] or loading["unexpected_keys"]:
        raise SystemExit(f"error: {case.name}: the checkpoint does not fit the model: {loading}")
    if case.lora:
        model = PeftModel.from_pretrained(model, folder / ADAPTER_FOLDER, is_trainable=True)
    return model.train()


def base_of(model):
    """The Qwen2.5-VL model itself, whether or not an adapter is wrapped around it."""
    return model.base_model.model if isinstance(model, PeftModel) else model


def trainable_parameters(model):
    """Trainable parameters by the names they have in files: peft leaves the name of the adapter out there."""
    return {name.replace(".default.", "."): p for name, p in model.named_parameters() if p.requires_grad}


def run(model, batch):
    """The forward pass on a padded batch. Position ids are the model's own."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    if "pixel_values" in batch:
        inputs |= {name: batch[name] for name in ("pixel_values", "image_grid_thw")}
        inputs["mm_token_type_ids"] = token_types(batch, base_of(model).config)
    return model(**inputs, use_cache=False)


class Watch:
    """Keeps intermediate values of one forward pass, and their gradients after the backward pass."""

    def __init__(self, model):
        self.values, self.hooks = {}, []
        base = base_of(model).model
        self.keep_output(base.visual.patch_embed, "vision.patches")
        for index, block in enumerate(base.visual.blocks):
            self.keep_output(block, f"vision.block.{index}")
        self.keep_output(base.visual, "image_embeddings", lambda output: output.pooler_output)
        layers = base.language_model.layers
        self.hooks.append(layers[0].register_forward_pre_hook(lambda _, inputs: self.keep("hidden.0", inputs[0])))
        for index, layer in enumerate(layers):
            self.keep_output(layer, f"hidden.{index + 1}")

    def keep_output(self, module, name, choose=lambda output: output):
        self.hooks.append(module.register_forward_hook(lambda _, inputs, output: self.keep(name, choose(output))))

    def keep(self, name, value):
        if value.requires_grad:
            value.retain_grad()
        self.values[name] = value

    def stop(self, real):
        """Values and gradients without padding: [tokens, hidden] for the decoder, [patches, hidden] for the tower."""
        for hook in self.hooks:
            hook.remove()
        result = {}
        for name, value in self.values.items():
            row = real if name.startswith("hidden") else slice(None)
            result[name] = value.detach()[row]
            # Of the tower only what leaves it: the rest would double the size of the files.
            if value.grad is not None and not name.startswith("vision"):
                result[f"gradient.{name}"] = value.grad[row]
        return result


def window_tables(model, batch):
    """What the vision tower derives from the image sizes: window order, segment boundaries, patch positions."""
    if "image_grid_thw" not in batch:
        return {}
    grid, vision = batch["image_grid_thw"], base_of(model).config.vision_config
    merge = vision.spatial_merge_size
    window_index, window_starts = get_vision_window_index(grid, merge, vision.window_size, vision.patch_size)
    return {
        "vision.window_index": window_index,
        "vision.window_starts": window_starts.long(),
        "vision.image_starts": get_vision_attention_seqlens(grid, vision)[0].long(),
        "vision.patch_positions": get_vision_position_ids(grid, merge),
    }


def record_step(model, batch, folder):
    """One forward and backward pass at the starting point: logits, loss, intermediate values, every gradient."""
    real = batch["attention_mask"].bool()
    watch = Watch(model)
    output = run(model, batch)
    output.loss.backward()
    values = {"logits": output.logits.detach()[real], **watch.stop(real), **window_tables(model, batch)}
    parameters = trainable_parameters(model)
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    save_tensors(values, folder / "outputs.safetensors")
    save_tensors(gradients, folder / "gradients.safetensors")
    check_padding(model, batch, values["logits"])
    model.zero_grad(set_to_none=True)
    targets = (batch["labels"][:, 1:] != -100).sum().item()
    return {
        "loss": output.loss.item(),
        "target_tokens": targets,
        "trainable_values": sum(p.numel() for p in parameters.values()),
        "parameters_without_gradient": [name for name in parameters if name not in gradients],
    }


def check_padding(model, batch, logits):
    """Each row alone, without padding, must give the logits it has in the batch."""
    images = iter(batch.get("image_grid_thw", torch.empty(0, 3)).tolist())
    patch_start, token_start = 0, 0
    for tokens, mask in zip(batch["input_ids"], batch["attention_mask"].bool()):
        row = {"input_ids": tokens[mask][None], "attention_mask": mask[mask][None].long(), "labels": tokens[mask][None]}
        count = int((row["input_ids"] == base_of(model).config.vision_start_token_id).sum())
        if count:
            row["image_grid_thw"] = torch.tensor([next(images) for _ in range(count)])
            patches = int(row["image_grid_thw"].prod(dim=1).sum())
            row["pixel_values"] = batch["pixel_values"][patch_start : patch_start + patches]
            patch_start += patches
        with torch.no_grad():
            alone = run(model, row).logits[0]
        together = logits[token_start : token_start + len(alone)]
        token_start += len(alone)
        difference = (alone - together).abs().max() / together.abs().max()
        if difference > PADDING_TOLERANCE:
            raise SystemExit(f"error: padding changes the logits of a real row by {difference:.1e}")


def learning_rates(training):
    if training.schedule == "constant":
        return [training.learning_rate] * training.steps
    return [training.learning_rate * (training.steps - step) / training.steps for step in range(training.steps)]


def train(case, model, batches):
    """Ten steps as the Trainer makes them: AdamW, decay groups, clipping. The loss of a step is taken before its update."""
    training = case.training
    decayed_names = set(Trainer.get_decay_parameter_names(None, model))
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in named if name in decayed_names], "weight_decay": training.weight_decay},
        {"params": [p for name, p in named if name not in decayed_names], "weight_decay": 0.0},
    ]
    betas = (training.beta1, training.beta2)
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.epsilon, foreach=False)
    losses, norms = [], []
    for step, rate in enumerate(learning_rates(training)):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = run(model, batches[step % len(batches)]).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_([p for _, p in named], training.clip_norm).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    with torch.no_grad():
        final_loss = run(model, batches[0]).loss.item()
    not_decayed = [name.replace(".default.", ".") for name, _ in named if name not in decayed_names]
    return {"losses": losses, "gradient_norms": norms, "final_loss": final_loss}, not_decayed


def record_training(case, model, batches, folder):
    """Trains, lowering the learning rate until rounding no longer matters: a chaotic run compares with nothing."""
    parameters = trainable_parameters(model)
    start = {name: p.detach().clone() for name, p in parameters.items()}
    while True:
        set_parameters(parameters, {name: nudged(value) for name, value in start.items()})
        beside, _ = train(case, model, batches)
        set_parameters(parameters, start)
        expected, not_decayed = train(case, model, batches)
        if not all(map(math.isfinite, expected["losses"])):
            raise SystemExit(f"error: {case.name}: a training loss is not a number")
        rounding = {name: largest_change(beside[name], expected[name]) for name in ROUNDING_LIMIT}
        if all(rounding[name] <= limit for name, limit in ROUNDING_LIMIT.items()):
            break
        case.training.learning_rate /= 2
    save_tensors({name: p.detach() for name, p in parameters.items()}, folder / "trained.safetensors")
    training = case.training
    return {
        "training": {
            "steps": training.steps,
            "schedule": training.schedule,
            "learning_rates": learning_rates(training),
            "beta1": training.beta1,
            "beta2": training.beta2,
            "epsilon": training.epsilon,
            "weight_decay": training.weight_decay,
            "clip_norm": training.clip_norm,
            "not_decayed": not_decayed,
        },
        "expected": {**expected, "rounding": rounding},
    }


def set_parameters(parameters, values):
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])


def nudged(value):
    """The same values, off by about what float32 arithmetic loses in a pass through the model."""
    return value * (1 + NUDGE * torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())))


def largest_change(found, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


def save_tensors(tensors, path):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def made_with():
    return {module.__name__: module.__version__.split("+")[0] for module in (torch, transformers, peft)}


def record_case(case, seed, folder):
    about = write_inputs(case, seed, folder)
    batches = [load_file(folder / name) for name in about["batches"]]
    model = load_model(case, folder)
    first = record_step(model, batches[0], folder)
    trained = record_training(case, model, batches, folder)
    about["training"] = trained["training"]
    about["expected"] = {**first, **trained["expected"]}
    about["made_with"] = made_with()
    write_json(folder / "case.json", about)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    losses, rounding = about["expected"]["losses"], about["expected"]["rounding"]["losses"]
    rate = about["training"]["learning_rates"][0]
    figures = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}   rate {rate:g}   rounding {rounding:.0e}"
    print(f"{case.name:20} {size / 1000:7.1f} kB   {figures}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that gets one folder per case")
    parser.add_argument("--seed", type=int, default=0, help="other weights, batches and, with --random, other shapes")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="record only these fixed cases")
    parser.add_argument("--random", type=int, metavar="COUNT", help="draw this many cases instead of the fixed ones")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    if arguments.random is not None:
        cases = [random_case(arguments.seed, index) for index in range(arguments.random)]
    else:
        cases = fixed_cases()
    if arguments.only:
        unknown = set(arguments.only) - {case.name for case in cases}
        if unknown:
            sys.exit(f"error: no case is named {', '.join(sorted(unknown))}")
        cases = [case for case in cases if case.name in arguments.only]
    for case in cases:
        folder = arguments.out / case.name
        if folder.exists():
            # Only a folder that this script wrote is replaced.
            if not (folder / "case.json").exists():
                sys.exit(f"error: {folder} exists and is not a recorded case")
            shutil.rmtree(folder)
        record_case(case, arguments.seed, folder)


if __name__ == "__main__":
    main()
