"""The tiny model with a vocabulary as large as the released one: 151,643 tokens, 151,387 merges, and an embedding to match. Random but valid, and made
without any package: what a tokenizer of that size takes of memory is the same as for the released one, and its file is as long (7 MB with indentation)."""

import json
import random
import shutil
import struct
from pathlib import Path

TINY = Path(__file__).resolve().parent.parent / "tiny-model"
TOKENS, ROWS = 151_643, 151_936
SPECIAL = [
    "bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id",
]


def grow(tokenizer):
    """Adds merges of two known tokens until there are enough; added tokens move behind them. Returns by how much."""
    model, draw = tokenizer["model"], random.Random(1)
    vocabulary, known = model["vocab"], list(model["vocab"])
    before = len(known)
    while len(known) < TOKENS:
        # Short parts are common, as in a real vocabulary: its tokens have 6 or 7 characters on average.
        left, right = draw.choice(known[: max(500, len(known) // 8)]), draw.choice(known[: max(500, len(known) // 8)])
        text = left + right
        if text in vocabulary or len(text) > 14:
            continue
        vocabulary[text] = len(known)
        model["merges"].append([left, right])
        known.append(text)
    moved = TOKENS - before
    for token in tokenizer["added_tokens"]:
        token["id"] += moved
    return moved


def move(settings, moved):
    """Ids of special tokens, wherever a configuration has them."""
    for name, value in settings.items():
        if isinstance(value, dict):
            move(value, moved)
        elif name in SPECIAL and isinstance(value, int):
            settings[name] = value + moved
        elif name in SPECIAL and isinstance(value, list):
            settings[name] = [one + moved for one in value]


def embedding(rows, width):
    """Small numbers of either sign as bf16."""
    count, draw = rows * width, random.Random(2)
    values = bytearray(2 * count)
    values[0::2] = draw.randbytes(count)
    values[1::2] = draw.randbytes(count).translate(bytes(0x3C if byte % 2 else 0xBC for byte in range(256)))
    return bytes(values)


def write_weights(source, target):
    data = source.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    tensors, made, offset = [], {}, 0
    for name, entry in header.items():
        if name == "__metadata__":
            made[name] = entry
            continue
        begin, end = entry["data_offsets"]
        values = body[begin:end]
        if name.endswith("embed_tokens.weight"):
            assert entry["dtype"] == "BF16"
            entry["shape"][0] = ROWS
            values = embedding(*entry["shape"])
        entry["data_offsets"] = [offset, offset + len(values)]
        offset += len(values)
        made[name] = entry
        tensors.append(values)
    text = json.dumps(made).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors))


def write_model(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    moved = grow(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1))
    for name in ("tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json"):
        shutil.copy(TINY / name, folder / name)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((TINY / name).read_text())
        move(settings, moved)
        if name == "config.json":
            settings["text_config"]["vocab_size"] = ROWS
        (folder / name).write_text(json.dumps(settings, indent=1))
    write_weights(TINY / "model.safetensors", folder / "model.safetensors")


if __name__ == "__main__":
    import sys

    write_model(sys.argv[1])
