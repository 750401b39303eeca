#!/usr/bin/env python3
"""Makes a random Qwen2.5-VL checkpoint of about 2 GB and loads it with weights of 4 bits: time, and the most memory that was held.

usage: loading.py [--layers 12] [--folder FOLDER] [--threads 2]

Needs no packages. Without --folder the checkpoint is made in a temporary one and removed. Prints JSON; exits 1 if more than the plan and two of
the largest tensors was held.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HIDDEN, INNER, HEADS, KEY_HEADS, VOCABULARY = 2048, 11008, 16, 2, 32768
VISION = {"depth": 2, "hidden_size": 320, "intermediate_size": 864, "num_heads": 4, "patch_size": 14, "temporal_patch_size": 2,
          "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [1], "out_hidden_size": HIDDEN, "in_channels": 3}


def config(layers):
    return {"model_type": "qwen2_5_vl", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": layers,
            "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "tie_word_embeddings": True,
            "image_token_id": 7, "vision_config": VISION}


def tensors(layers):
    keys, hidden, inner = KEY_HEADS * HIDDEN // HEADS, VISION["hidden_size"], VISION["intermediate_size"]
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for index in range(layers):
        name = f"model.layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}{norm}.weight", [HIDDEN]
        for part, size in (("q", HIDDEN), ("k", keys), ("v", keys)):
            yield f"{name}self_attn.{part}_proj.weight", [size, HIDDEN]
            yield f"{name}self_attn.{part}_proj.bias", [size]
        yield f"{name}self_attn.o_proj.weight", [HIDDEN, HIDDEN]
        yield f"{name}mlp.gate_proj.weight", [INNER, HIDDEN]
        yield f"{name}mlp.up_proj.weight", [INNER, HIDDEN]
        yield f"{name}mlp.down_proj.weight", [HIDDEN, INNER]
    yield "visual.patch_embed.proj.weight", [hidden, 3, 2, 14, 14]
    for index in range(VISION["depth"]):
        name = f"visual.blocks.{index}."
        for norm in ("norm1", "norm2"):
            yield f"{name}{norm}.weight", [hidden]
        for part, outputs, inputs in (("attn.qkv", 3 * hidden, hidden), ("attn.proj", hidden, hidden), ("mlp.gate_proj", inner, hidden),
                                      ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner)):
            yield f"{name}{part}.weight", [outputs, inputs]
            yield f"{name}{part}.bias", [outputs]
    yield "visual.merger.ln_q.weight", [hidden]
    for part, outputs, inputs in (("0", 4 * hidden, 4 * hidden), ("2", HIDDEN, 4 * hidden)):
        yield f"visual.merger.mlp.{part}.weight", [outputs, inputs]
        yield f"visual.merger.mlp.{part}.bias", [outputs]


def write(folder, layers):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config(layers), file)
    header, end, lengths = {"__metadata__": {"format": "pt"}}, 0, []
    for name, shape in tensors(layers):
        length = 2
        for size in shape:
            length *= size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + length]}
        end += length
        lengths.append(length)
    text = json.dumps(header).encode()
    # bf16 values of about 0.01, of both signs: random low bytes, one of eight high ones.
    random.seed(1)
    highs = random.choices((0x3B, 0x3C, 0xBB, 0xBC), k=1 << 22)
    block = bytes(value for pair in zip(random.randbytes(1 << 22), highs) for value in pair)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for length in lengths:
            # Each tensor begins elsewhere in the block, so that they differ.
            start = 2 * random.randrange(len(block) // 2)
            turned = block[start:] + block[:start]
            while length > 0:
                file.write(turned[:length])
                length -= len(turned)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "garden-model", "--example", "bench_load"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        if not os.path.exists(os.path.join(folder, "model.safetensors")):
            write(folder, arguments.layers)
        program = os.path.join(ROOT, "target", "release", "examples", "bench_load")
        done = subprocess.run([program, folder, str(arguments.threads)], stdout=subprocess.PIPE, check=True)
    told = json.loads(done.stdout)
    print(json.dumps(told, indent=2))
    sys.exit(told["peak_above_start_bytes"] > told["allowed_bytes"])


if __name__ == "__main__":
    main()
