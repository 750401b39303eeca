#!/usr/bin/env python3
"""Records a toy of a family: two kinds of layers in turn, a tower that sees whole images only, and names of its own.

usage: mixed_layers.py --out recorded_mixed [--seed 0]

The kinds differ in key heads, head size, rotary base and sections, and MLP width; no head is hidden size / heads wide, and nothing
in the decoder has a bias. There is no such class in transformers, so specification.py (float64) is what computes: logits, every
gradient and ten steps, for all weights and for an adapter. It agrees with transformers on the other cases (check_facts.py). It knows
tensors by the names of the first family; the recorded files have the toy's.
"""

import argparse
import json
import math
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from specification import Specification

HIDDEN, VOCABULARY, IMAGE_TOKEN = 24, 96, 90
LAYERS = [
    {"heads": 4, "kv_heads": 2, "head_dim": 10, "theta": 1e4, "sections": [1, 2, 2], "intermediate": 40},
    {"heads": 2, "kv_heads": 1, "head_dim": 14, "theta": 1e6, "sections": [3, 2, 2], "intermediate": 28},
] * 2
EPSILON = 1e-5
VISION = {
    "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2,
    "spatial_merge_size": 2, "window_size": 16, "out_hidden_size": HIDDEN, "fullatt_block_indexes": [0, 1],
}
TRAINING = {
    "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0, "learning_rates": [2e-3] * 10,
}
RANK, ALPHA = 3, 6
# The toy's names, in the order in which they take the place of others.
NAMES = [
    (r"model\.visual\.merger\.ln_q", "toy.bridge.norm"), (r"model\.visual\.merger\.mlp\.0", "toy.bridge.wide"),
    (r"model\.visual\.merger\.mlp\.2", "toy.bridge.narrow"), (r"model\.visual\.patch_embed\.proj", "toy.eye.patches"),
    (r"model\.visual\.blocks", "toy.eye.blocks"), (r"\.norm1\.", ".before_looking."), (r"\.norm2\.", ".before_mlp."),
    (r"\.attn\.qkv", ".look.all"), (r"\.attn\.proj", ".look.back"), (r"gate_proj", "gate"), (r"up_proj", "rise"), (r"down_proj", "fall"),
    (r"model\.language_model\.embed_tokens", "toy.words"), (r"lm_head", "toy.answer"), (r"model\.language_model\.norm", "toy.last"),
    (r"model\.language_model\.layers", "toy.layers"), (r"input_layernorm", "before_mixer"), (r"post_attention_layernorm", "before_mlp"),
    (r"self_attn\.q_proj", "mixer.query"), (r"self_attn\.k_proj", "mixer.key"), (r"self_attn\.v_proj", "mixer.value"),
    (r"self_attn\.o_proj", "mixer.back"),
]


def shapes():
    """Names and shapes of all tensors."""
    linears = {}
    for block in range(VISION["depth"]):
        name, hidden, inner = f"model.visual.blocks.{block}", VISION["hidden_size"], VISION["intermediate_size"]
        linears |= {f"{name}.attn.qkv": (3 * hidden, hidden), f"{name}.attn.proj": (hidden, hidden)}
        linears |= {f"{name}.mlp.{part}_proj": (inner, hidden) for part in ("gate", "up")}
        linears[f"{name}.mlp.down_proj"] = (hidden, inner)
    wide = 4 * VISION["hidden_size"]
    linears |= {"model.visual.merger.mlp.0": (wide, wide), "model.visual.merger.mlp.2": (HIDDEN, wide)}
    with_bias = list(linears)
    for index, layer in enumerate(LAYERS):
        name, queries, keys = f"model.language_model.layers.{index}", layer["heads"] * layer["head_dim"], layer["kv_heads"] * layer["head_dim"]
        linears |= {f"{name}.self_attn.q_proj": (queries, HIDDEN), f"{name}.self_attn.o_proj": (HIDDEN, queries)}
        linears |= {f"{name}.self_attn.{part}_proj": (keys, HIDDEN) for part in "kv"}
        linears |= {f"{name}.mlp.{part}_proj": (layer["intermediate"], HIDDEN) for part in ("gate", "up")}
        linears[f"{name}.mlp.down_proj"] = (HIDDEN, layer["intermediate"])
    found = {f"{name}.weight": shape for name, shape in linears.items()}
    found |= {f"{name}.bias": (linears[name][0],) for name in with_bias}
    found |= {f"model.visual.blocks.{block}.norm{number}.weight": (VISION["hidden_size"],) for block in range(VISION["depth"]) for number in (1, 2)}
    found["model.visual.merger.ln_q.weight"] = (VISION["hidden_size"],)
    for index in range(len(LAYERS)):
        found |= {f"model.language_model.layers.{index}.{norm}_layernorm.weight": (HIDDEN,) for norm in ("input", "post_attention")}
    found["model.language_model.norm.weight"] = (HIDDEN,)
    found |= {name: (VOCABULARY, HIDDEN) for name in ("model.language_model.embed_tokens.weight", "lm_head.weight")}
    patch = VISION["patch_size"]
    found["model.visual.patch_embed.proj.weight"] = (VISION["hidden_size"], 3, VISION["temporal_patch_size"], patch, patch)
    return linears, dict(sorted(found.items()))


def draw(name, shape, generator):
    noise = torch.randn(shape, generator=generator)
    if "norm" in name or "ln_q" in name:
        return 1 + 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if "embed_tokens" in name or "lm_head" in name:
        return 0.15 * noise
    return noise / math.sqrt(noise[0].numel())


def draw_batch(generator):
    """A row with two images, one of text, and one with an image first: packed, without padding."""
    grids, tokens, labels, starts = [], [], [], [0]
    for pieces in [(4, (4, 6), 3, (2, 2), 6), (9,), ((6, 4), 7)]:
        first = len(tokens)
        for piece in pieces:
            if isinstance(piece, tuple):
                grids.append((1, *piece))
                count = piece[0] * piece[1] // 4
                tokens += [IMAGE_TOKEN] * count
                labels += [-100] * count
            else:
                text = torch.randint(0, IMAGE_TOKEN, (piece,), generator=generator).tolist()
                tokens += text
                labels += text
        starts.append(len(tokens))
        # Nothing predicts the first token of a row.
        labels[first] = tokens[first] if tokens[first] != IMAGE_TOKEN else -100
    values = 3 * VISION["temporal_patch_size"] * VISION["patch_size"] ** 2
    patches = sum(height * width for _, height, width in grids)
    return {
        "packed.input_ids": torch.tensor(tokens),
        "packed.labels": torch.tensor(labels),
        "packed.row_starts": torch.tensor(starts),
        "image_grid_thw": torch.tensor(grids),
        "pixel_values": torch.randn(patches, values, generator=generator),
    }


def is_decayed(name):
    """By the names that transformers' trainers look at."""
    parts = name.split(".")
    return "bias" not in name and not any(part == "norm" or part.endswith("layernorm") for part in parts)


def own_name(name):
    for pattern, own in NAMES:
        name = re.sub(pattern, own, name)
    return name


def rename(folder):
    """Gives all tensors of a recorded folder the toy's names."""
    for path in folder.rglob("*.safetensors"):
        save_file({own_name(name): tensor for name, tensor in load_file(path).items()}, path)


def record(folder, seed, has_adapter):
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    linears, all_shapes = shapes()
    weights = {name: draw(name, shape, generator) for name, shape in all_shapes.items()}
    save_file(weights, folder / "model.safetensors")
    batch = draw_batch(generator)
    save_file(batch, folder / "batch.safetensors")
    config = {
        "model_type": "toy", "hidden_size": HIDDEN, "vocab_size": VOCABULARY, "image_token_id": IMAGE_TOKEN, "rms_norm_eps": EPSILON,
        "tie_word_embeddings": False, "layers": LAYERS, "vision_config": VISION,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    lora = None
    if has_adapter:
        lora = {"folder": "adapter", "rank": RANK, "alpha": ALPHA, "scale": ALPHA / RANK}
        (folder / "adapter").mkdir()
        adapter = {}
        for name, (outputs, inputs) in linears.items():
            adapter[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, inputs, generator=generator) / math.sqrt(inputs)
            adapter[f"base_model.model.{name}.lora_B.weight"] = 0.1 * torch.randn(outputs, RANK, generator=generator)
        save_file(adapter, folder / "adapter" / "adapter_model.safetensors")
        targets = sorted({own_name(name).rsplit(".", 1)[1] for name in linears})
        settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
        (folder / "adapter" / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    case = {"name": folder.name, "model": {"weights": ["model.safetensors"]}, "lora": lora, "batches": ["batch.safetensors"]}
    case["training"] = {**TRAINING, "not_decayed": [] if has_adapter else [name for name in all_shapes if not is_decayed(name)]}
    (folder / "case.json").write_text(json.dumps(case, indent=2) + "\n")
    logits, loss, gradients = Specification(folder).gradients(batch)
    trained = Specification(folder)
    losses, norms = trained.train([batch])
    values = {name: parameter.detach().float().contiguous() for name, parameter in trained.trainable.items()}
    save_file(values, folder / "trained.safetensors")
    save_file({"logits": logits.float()}, folder / "outputs.safetensors")
    save_file({name: gradient.float().contiguous() for name, gradient in gradients.items()}, folder / "gradients.safetensors")
    rename(folder)
    case["training"]["not_decayed"] = [own_name(name) for name in case["training"]["not_decayed"]]
    case["expected"] = {"loss": loss, "losses": losses, "gradient_norms": norms}
    (folder / "case.json").write_text(json.dumps(case, indent=2) + "\n")
    print(f"{folder.name}: loss {loss:.6f}, after ten steps {losses[-1]:.6f}, {len(gradients)} gradients")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record(arguments.out / "mixed_full", arguments.seed, has_adapter=False)
    record(arguments.out / "mixed_lora", arguments.seed + 1, has_adapter=True)


if __name__ == "__main__":
    main()
