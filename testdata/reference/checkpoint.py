"""Writes the files of a case that a training program starts from: checkpoint, adapter and batches.

Weights are drawn so that mistakes show: no bias is zero, no norm weight is one, and no LoRA product vanishes.
"""

import json
import math
import zlib
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

IGNORED = -100
ADAPTER_FOLDER = "adapter"
PADDING_TOKEN = 0
# Tokens below this are left to padding and the markers of begin and end.
FIRST_TEXT_TOKEN = 3
# Tokens at the end of the vocabulary, in this order: image, video, vision start, vision end.
MARKERS = 4


def generator_of(case, seed, purpose):
    """Random numbers of their own for every case and purpose, so that a new case changes no other."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{case.name}/{purpose}".encode()))


def config_of(case):
    text, vision = case.text, case.vision
    first_marker = text.vocabulary - MARKERS
    return Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=text.vocabulary,
            hidden_size=text.hidden,
            intermediate_size=text.intermediate,
            num_hidden_layers=text.layers,
            num_attention_heads=text.heads,
            num_key_value_heads=text.kv_heads,
            rms_norm_eps=text.rms_norm_eps,
            max_position_embeddings=1024,
            max_window_layers=text.layers,
            rope_parameters=dict(rope_type="default", rope_theta=text.rope_theta, mrope_section=list(text.mrope_section)),
            bos_token_id=1,
            eos_token_id=2,
        ),
        vision_config=dict(
            depth=vision.depth,
            hidden_size=vision.hidden,
            intermediate_size=vision.intermediate,
            num_heads=vision.heads,
            patch_size=vision.patch,
            window_size=vision.window,
            fullatt_block_indexes=list(vision.full_blocks),
            out_hidden_size=text.hidden,
            tokens_per_second=2,
        ),
        image_token_id=first_marker,
        video_token_id=first_marker + 1,
        vision_start_token_id=first_marker + 2,
        vision_end_token_id=first_marker + 3,
        tie_word_embeddings=case.tied,
    )


def flat_config(case, config):
    """The layout that the released checkpoints have: decoder fields at the top, older names for rotary and channels."""
    text, vision = config.text_config, config.vision_config
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "vision_start_token_id": config.vision_start_token_id,
        "vision_end_token_id": config.vision_end_token_id,
        "image_token_id": config.image_token_id,
        "video_token_id": config.video_token_id,
        "hidden_act": text.hidden_act,
        "hidden_size": text.hidden_size,
        "initializer_range": text.initializer_range,
        "intermediate_size": text.intermediate_size,
        "max_position_embeddings": text.max_position_embeddings,
        "max_window_layers": text.max_window_layers,
        "model_type": "qwen2_5_vl",
        "num_attention_heads": text.num_attention_heads,
        "num_hidden_layers": text.num_hidden_layers,
        "num_key_value_heads": text.num_key_value_heads,
        "rms_norm_eps": text.rms_norm_eps,
        "rope_theta": case.text.rope_theta,
        "sliding_window": 32768,
        "tie_word_embeddings": case.tied,
        "torch_dtype": case.files.dtype,
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": {
            "depth": vision.depth,
            "hidden_act": vision.hidden_act,
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "num_heads": vision.num_heads,
            "in_chans": vision.in_channels,
            "out_hidden_size": vision.out_hidden_size,
            "patch_size": vision.patch_size,
            "spatial_merge_size": vision.spatial_merge_size,
            "spatial_patch_size": vision.patch_size,
            "window_size": vision.window_size,
            "fullatt_block_indexes": list(vision.fullatt_block_indexes),
            "tokens_per_second": vision.tokens_per_second,
            "temporal_patch_size": vision.temporal_patch_size,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": list(case.text.mrope_section)},
        "vocab_size": text.vocab_size,
    }


def draw_weights(model, generator):
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name or "ln_q" in name:
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.2 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            value = 0.15 * noise
        else:
            value = noise / math.sqrt(parameter[0].numel())
        parameter.data.copy_(value)


def draw_adapter(model, generator):
    """A as peft starts it (uniform within 1 / sqrt(inputs)); B not zero, or the gradient of A would be zero."""
    for name, parameter in sorted(model.named_parameters()):
        if "lora_A" in name:
            uniform = 2 * torch.rand(parameter.shape, generator=generator) - 1
            parameter.data.copy_(uniform / math.sqrt(parameter.shape[1]))
        elif "lora_B" in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


def write_model(case, seed, folder):
    config = config_of(case)
    model = Qwen2_5_VLForConditionalGeneration(config)
    draw_weights(model, generator_of(case, seed, "weights"))
    model.to(getattr(torch, case.files.dtype))
    total_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    largest_bytes = max(p.numel() * p.element_size() for p in model.parameters())
    shard_bytes = total_bytes + 1 if case.files.shards == 1 else total_bytes // 2 + largest_bytes
    model.save_pretrained(folder, max_shard_size=shard_bytes, save_original_format=case.files.names == "hub")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if case.files.config == "flat":
        write_json(folder / "config.json", flat_config(case, config))
    weights = sorted(path.name for path in folder.glob("model*.safetensors"))
    if len(weights) != case.files.shards:
        raise SystemExit(f"error: {case.name}: expected {case.files.shards} weight file(s), got {weights}")
    return model, weights


def write_adapter(case, seed, model, folder):
    """Saves the adapter with peft and returns the names of the modules it covers.

    It has a folder of its own: transformers loads an adapter it finds beside a checkpoint without being asked.
    """
    folder = folder / ADAPTER_FOLDER
    settings = LoraConfig(
        r=case.lora.rank,
        lora_alpha=case.lora.alpha,
        lora_dropout=0.0,
        use_rslora=case.lora.rslora,
        target_modules=case.lora.targets,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model.to(torch.float32), settings)
    draw_adapter(model, generator_of(case, seed, "adapter"))
    model.save_pretrained(folder)
    (folder / "README.md").unlink()  # peft's model card
    # peft keeps target names in a set, whose order changes from run to run.
    saved = json.loads((folder / "adapter_config.json").read_text())
    if isinstance(saved["target_modules"], list):
        saved["target_modules"].sort()
    write_json(folder / "adapter_config.json", saved)
    return model.targeted_module_names


def make_batch(case, seed, index):
    """A batch as transformers takes it: rows padded on the right. Position ids are left to the model."""
    generator = generator_of(case, seed, f"batch {index}")
    config = config_of(case)
    rows = [make_row(case, config, row, generator) for row in case.batches[index]]
    length = max(len(tokens) for tokens, _ in rows)
    shape = (len(rows), length)
    batch = {
        "input_ids": torch.full(shape, PADDING_TOKEN),
        "labels": torch.full(shape, IGNORED),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
    }
    for number, (tokens, labels) in enumerate(rows):
        batch["input_ids"][number, : len(tokens)] = torch.tensor(tokens)
        batch["labels"][number, : len(tokens)] = torch.tensor(labels)
        batch["attention_mask"][number, : len(tokens)] = 1
    images = [piece for row in case.batches[index] for piece in row.pieces if isinstance(piece, tuple)]
    if images:
        batch["image_grid_thw"] = torch.tensor([(1, height, width) for height, width in images])
        patches = sum(height * width for height, width in images)
        vision = config.vision_config
        patch_values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        # A processor would repeat an image for both time steps of a patch; different values also show a wrong order.
        batch["pixel_values"] = torch.randn(patches, patch_values, generator=generator)
    return batch


def make_row(case, config, row, generator):
    """Tokens and labels of one row. Images are never labelled; of the text tokens three in four are."""
    merged = config.vision_config.spatial_merge_size**2
    tokens, labels = [], []
    for piece in row.pieces:
        if isinstance(piece, tuple):
            count = piece[0] * piece[1] // merged
            image = [config.vision_start_token_id] + [config.image_token_id] * count + [config.vision_end_token_id]
            tokens += image
            labels += [IGNORED] * len(image)
        else:
            last = case.text.vocabulary - MARKERS
            text = torch.randint(FIRST_TEXT_TOKEN, last, (piece,), generator=generator).tolist()
            kept = (torch.rand(piece, generator=generator) < 0.75).tolist()
            tokens += text
            labels += [token if keep else IGNORED for token, keep in zip(text, kept)]
    if row.labels == "none":
        labels = [IGNORED] * len(labels)
    else:
        # The first token is labelled although nothing predicts it: where rows lie end to end, the last position of the
        # row before must not be asked for it. The last token is labelled so that every row has a target.
        labels[0], labels[-1] = tokens[0], tokens[-1]
    return tokens, labels


def token_types(batch, config):
    """1 where an image token stands. Without it, transformers 5 silently numbers positions as if all were text."""
    return (batch["input_ids"] == config.image_token_id).int()


def write_batch(model, batch, path):
    """Adds position ids as the model makes them, and the same batch with the padding taken out (`packed.*`)."""
    real = batch["attention_mask"].bool()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if "image_grid_thw" in batch:
        types = token_types(batch, model.config)
        positions, _ = model.model.get_rope_index(mm_token_type_ids=types, image_grid_thw=batch["image_grid_thw"], **inputs)
    else:
        positions = torch.arange(real.shape[1]).expand(3, *real.shape) * batch["attention_mask"]
    batch["position_ids"] = positions
    lengths = real.sum(dim=1)
    packed = {
        "packed.input_ids": batch["input_ids"][real],
        "packed.labels": batch["labels"][real],
        "packed.position_ids": positions[:, real],
        "packed.row_starts": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        "packed.real_rows": real.flatten().nonzero().flatten(),
    }
    save_file({name: tensor.contiguous() for name, tensor in {**batch, **packed}.items()}, path)


def batch_file(index):
    return "batch.safetensors" if index == 0 else f"batch-{index}.safetensors"


def write_inputs(case, seed, folder):
    """Everything a training program reads. Returns what `case.json` says about it."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    model, weights = write_model(case, seed, folder)
    batches = []
    for index in range(len(case.batches)):
        write_batch(model, make_batch(case, seed, index), folder / batch_file(index))
        batches.append(batch_file(index))
    lora = None
    if case.lora:
        adapted = write_adapter(case, seed, model, folder)
        root = math.sqrt(case.lora.rank) if case.lora.rslora else case.lora.rank
        lora = {
            "folder": ADAPTER_FOLDER,
            "rank": case.lora.rank,
            "alpha": case.lora.alpha,
            "rslora": case.lora.rslora,
            "scale": case.lora.alpha / root,
            "dropout": 0.0,
            "target_modules": case.lora.targets,
            "adapted_modules": adapted,
        }
    return {
        "format": 1,
        "name": case.name,
        "about": case.about,
        "seed": seed,
        "mode": "lora" if case.lora else "full",
        "model": {
            "weights": weights,
            "config_layout": case.files.config,
            "tensor_names": case.files.names,
            "dtype": case.files.dtype,
            "tied_head": case.tied,
        },
        "lora": lora,
        "batches": batches,
    }


def write_json(path, value):
    Path(path).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
