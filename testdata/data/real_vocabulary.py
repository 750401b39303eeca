#!/usr/bin/env python3
"""Makes a tokenizer.json with the released Qwen vocabulary of 151,643 tokens, to compare tokens at its real size.

usage: real_vocabulary.py RANKS OUT

RANKS is `qwen.tiktoken`, a file of the PyPI package dashscope (`pip download --no-deps dashscope`, then unpack dashscope/resources/). It has tokens by
rank and no merges: a token's merge is the pair that is left when all merges of lower rank have been made in it. Everything else is taken from the tiny
model's tokenizer.json beside this file, which is set up as Qwen's.
"""
import base64
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "..", "tiny-model")


def letters():
    """The letter that stands for each byte in a byte-level vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + number) for number, byte in enumerate(others)}}


def last_pair(token, ranks):
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        found = [(ranks.get(parts[at] + parts[at + 1], len(ranks)), at) for at in range(len(parts) - 1)]
        rank, at = min(found)
        if rank >= ranks[token]:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as file:
        lines = [line.split() for line in file if line.strip()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    letter = letters()
    written = {token: "".join(letter[byte] for byte in token) for token in ranks}
    pairs = [last_pair(token, ranks) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    with open(os.path.join(TINY, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["model"]["vocab"] = {written[token]: rank for token, rank in ranks.items()}
    tokenizer["model"]["merges"] = [[written[part] for part in pair] for pair in pairs if pair]
    for number, added in enumerate(tokenizer["added_tokens"]):
        added["id"] = len(ranks) + number
    os.makedirs(sys.argv[2], exist_ok=True)
    for name in os.listdir(TINY):
        if name.endswith((".json", ".jinja")) and name not in ("tokenizer.json", "expected.json"):
            shutil.copy(os.path.join(TINY, name), sys.argv[2])
    with open(os.path.join(sys.argv[2], "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer, file, ensure_ascii=False)
    print(f"{len(ranks)} tokens, {len(tokenizer['model']['merges'])} merges")


if __name__ == "__main__":
    main()
