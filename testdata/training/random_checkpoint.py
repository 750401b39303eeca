"""A checkpoint with random bf16 weights in the released layout, made where it is needed: one of 3B parameters is 7.5 GB, and a GPU draws it in a moment."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

TINY = Path(__file__).parent.parent / "tiny-model"
SHARD_BYTES = 2**30
# As Qwen/Qwen2.5-VL-3B-Instruct has them.
CONFIG_3B = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "image_token_id": 151655,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "video_token_id": 151656,
    "vision_config": {
        "depth": 32,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "hidden_act": "silu",
        "hidden_size": 1280,
        "in_chans": 3,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
    },
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
    "vision_token_id": 151654,
    "vocab_size": 151936,
}
PARAMETERS_3B = 3_754_622_976


def write_config(folder, shape, vocabulary):
    """Configuration and processor files; `vocabulary` is a folder of data/real_vocabulary.py."""
    folder.mkdir(parents=True, exist_ok=True)
    source = TINY if shape == "tiny" else vocabulary
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json", "generation_config.json", "config.json"):
        shutil.copy(source / name, folder / name)
    if shape == "tiny":
        return
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    if added.get("<|image_pad|>") != CONFIG_3B["image_token_id"]:
        raise SystemExit(f"error: {source / 'tokenizer.json'} has not the released vocabulary\n\nhint: make it with testdata/data/real_vocabulary.py")
    sizes = json.loads((source / "preprocessor_config.json").read_text())
    words = json.loads((source / "tokenizer_config.json").read_text())
    generation = {"bos_token_id": 151643, "pad_token_id": 151643, "eos_token_id": [151645, 151643], "do_sample": False}
    for name, values in {
        "config.json": CONFIG_3B,
        "preprocessor_config.json": {**sizes, "max_pixels": 12845056},
        "tokenizer_config.json": {**words, "model_max_length": 131072},
        "generation_config.json": generation,
    }.items():
        (folder / name).write_text(json.dumps(values, indent=1) + "\n")


def hub_name(name):
    """As released files name a parameter that transformers 5 has under this name."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def draw(name, shape, device, numbers):
    if name.endswith(".bias"):
        return torch.zeros(shape, dtype=torch.bfloat16, device=device)
    # Norms; all else has two dimensions or, as the patch embedding, five.
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16, device=device)
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, 0.02, generator=numbers)


def write_shard(path, tensors):
    """A safetensors file. The library copies every tensor twice before it writes, which is most of the time for gigabytes on a GPU."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(tensor.flatten().view(torch.uint8).cpu().numpy())


def write_checkpoint(folder, shape, vocabulary, device, seed):
    """Writes everything and returns the number of parameters."""
    write_config(folder, shape, vocabulary)
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(AutoConfig.from_pretrained(folder))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters() if name != "lm_head.weight"}
    count = sum(torch.Size(one).numel() for one in shapes.values())
    if shape == "3b" and count != PARAMETERS_3B:
        raise SystemExit(f"error: {count} parameters instead of {PARAMETERS_3B}")
    numbers = torch.Generator(device).manual_seed(seed)
    shards, size = [{}], 0
    for name, one in shapes.items():
        tensor = draw(name, one, device, numbers)
        if size + tensor.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][hub_name(name)] = tensor
        size += tensor.nbytes
    files = {f"model-{number:05}-of-{len(shards):05}.safetensors": tensors for number, tensors in enumerate(shards, 1)}
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda file: write_shard(folder / file, files[file]), files))
    places = {name: file for file, tensors in files.items() for name in tensors}
    index = {"metadata": {"total_size": 2 * count}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    return count
