"""Small Qwen2.5-VL checkpoints that are unlike ../tiny-model and unlike each other, for compare_models.py.

Tokenizer, chat template and image processor are the tiny model's. Weights are drawn so that mistakes show: no bias is zero and no norm is one.
"""

import json
import shutil
from dataclasses import dataclass

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

from random_checkpoint import TINY, hub_name

COPIED = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]


@dataclass
class Model:
    seed: int
    text: dict
    vision: dict
    sections: list
    theta: float
    is_tied: bool
    # Storage of the decoder and of the vision tower.
    dtypes: tuple
    files: int = 1
    # The released models' layout: decoder fields at the top of config.json, `visual.*` and `model.layers.*` in the files.
    is_flat: bool = False
    # Merged patches of a picture at most; the tiny model's 16 are one window.
    most_patches: int = 16


MODELS = {
    # Six heads over two; heads of 20 in the decoder and of 12 in the tower, which no vector register divides; windows of 2 x 2 merged patches.
    "untied": Model(
        seed=11,
        text=dict(vocab_size=1240, hidden_size=120, intermediate_size=200, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-6),
        vision=dict(depth=3, hidden_size=48, intermediate_size=72, num_heads=4, window_size=56, fullatt_block_indexes=[0, 2], out_hidden_size=120),
        sections=[2, 4, 4], theta=1e6, is_tied=False, dtypes=(torch.float32, torch.float32), files=4, most_patches=36,
    ),
    # Odd numbers: a vocabulary of 1,225, MLPs of 101 and 37, seven heads over one, five in the tower.
    "odd": Model(
        seed=12,
        text=dict(vocab_size=1225, hidden_size=56, intermediate_size=101, num_hidden_layers=4, num_attention_heads=7, num_key_value_heads=1, rms_norm_eps=1e-6),
        vision=dict(depth=4, hidden_size=40, intermediate_size=37, num_heads=5, window_size=84, fullatt_block_indexes=[1], out_hidden_size=56),
        sections=[1, 1, 2], theta=1e6, is_tied=True, dtypes=(torch.float16, torch.float16), most_patches=48,
    ),
    # As released files are laid out; every head has its own keys, no block of the tower sees the whole picture, and other constants.
    "hub": Model(
        seed=13,
        text=dict(vocab_size=1264, hidden_size=96, intermediate_size=130, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, rms_norm_eps=1e-5),
        vision=dict(depth=2, hidden_size=64, intermediate_size=90, num_heads=4, window_size=56, fullatt_block_indexes=[], out_hidden_size=96),
        sections=[8, 4, 4], theta=1e4, is_tied=False, dtypes=(torch.bfloat16, torch.float32), files=2, is_flat=True, most_patches=30,
    ),
}


def config_of(model):
    """config.json, with the ids of the tiny model's tokenizer."""
    tiny = json.loads((TINY / "config.json").read_text())
    dtype = str(model.dtypes[0]).removeprefix("torch.")
    top = {
        "architectures": tiny["architectures"], "model_type": "qwen2_5_vl", "tie_word_embeddings": model.is_tied,
        **{name: value for name, value in tiny.items() if name.endswith("_token_id")},
    }
    text = {
        **model.text, **{name: tiny["text_config"][name] for name in ("bos_token_id", "eos_token_id", "hidden_act", "max_position_embeddings")},
        "max_window_layers": model.text["num_hidden_layers"], "use_sliding_window": False,
    }
    vision = {**model.vision, "hidden_act": "silu", "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2}
    if model.is_flat:
        rope = {"rope_theta": model.theta, "rope_scaling": {"type": "mrope", "mrope_section": model.sections}}
        return {**top, **text, **rope, "torch_dtype": dtype, "vision_config": {**vision, "in_chans": 3, "spatial_patch_size": 14}}
    rope = {"rope_type": "default", "rope_theta": model.theta, "mrope_section": model.sections}
    text.update(model_type="qwen2_5_vl_text", rope_parameters=rope, tie_word_embeddings=model.is_tied)
    return {**top, "dtype": dtype, "text_config": text, "vision_config": {**vision, "model_type": "qwen2_5_vl_vision", "in_channels": 3}}


def draw(name, shape, numbers):
    """Values of a size at which tokens matter: with the usual 0.02 every answer would be the same."""
    noise = torch.randn(shape, generator=numbers)
    if len(shape) == 1:
        return 0.1 * noise if name.endswith(".bias") else 1 + 0.1 * noise
    return 0.5 * noise if "embed_tokens" in name else 1.4 * noise / noise[0].numel() ** 0.5


def write_weights(folder, model):
    with torch.device("meta"):
        network = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(folder))
    assert (network.config.vision_config.fullatt_block_indexes, network.config.text_config.rms_norm_eps) == (
        model.vision["fullatt_block_indexes"], model.text["rms_norm_eps"],
    ), "transformers reads another configuration"
    assert network.config.text_config.rope_parameters["mrope_section"] == model.sections and network.config.text_config.rope_parameters["rope_theta"] == model.theta
    numbers = torch.Generator().manual_seed(model.seed)
    # A tied head is no parameter of its own.
    tensors = {}
    for name, parameter in network.named_parameters():
        if model.is_tied and name == "lm_head.weight":
            continue
        dtype = model.dtypes["visual" in name]
        tensors[hub_name(name) if model.is_flat else name] = draw(name, parameter.shape, numbers).to(dtype)
    if model.files == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    names = [f"model-{number + 1:05}-of-{model.files:05}.safetensors" for number in range(model.files)]
    # Dealt out like cards, so that a layer's tensors are in several files.
    places = {tensor: names[number % model.files] for number, tensor in enumerate(tensors)}
    for file in names:
        save_file({tensor: tensors[tensor] for tensor, place in places.items() if place == file}, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_model(folder, name):
    model = MODELS[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in COPIED:
        shutil.copy(TINY / file, folder / file)
    processor = json.loads((TINY / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "max_pixels": 28 * 28 * model.most_patches}, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(config_of(model), indent=1) + "\n")
    write_weights(folder, model)
