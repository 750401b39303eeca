#!/usr/bin/env python3
"""Records what tokenizers, transformers and PIL make of texts, conversations and pictures.

usage: record.py --model ../tiny-model --out FOLDER [--texts 300] [--seed 0]

Writes texts.json, conversations.json, sizes.json, pictures.json with a folder of pictures, examples.json, borders.json, selective.json, and rows.jsonl with rows.json and templates (README.md says what is in them).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from tokenizers import Tokenizer
from transformers import AutoProcessor, Qwen2VLImageProcessor
from transformers.image_transforms import convert_to_rgb
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from examples import record_borders, record_examples, record_selective
from pictures import all_pictures
from rows import TEMPLATES, record_rows, template_source
from texts import test_texts

MIN_PIXELS, MAX_PIXELS = 28 * 28 * 3, 28 * 28 * 10
PATCH, MERGE, FRAMES = 14, 2, 2
SAMPLES = 40


def record_texts(model, count, seed):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    recorded = []
    for text in test_texts(count, seed):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        recorded.append({"text": text, "tokens": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False), "plain": tokenizer.decode(ids)})
    numbers = np.random.default_rng(seed)
    answers = []
    for _ in range(60):
        # Tokens in no order that text would have them in: bytes that are no UTF-8.
        ids = numbers.integers(0, tokenizer.get_vocab_size(), 9).tolist() if _ % 2 else numbers.integers(0, 256, 7).tolist()
        answers.append({"tokens": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False), "plain": tokenizer.decode(ids)})
    return {"encode": recorded, "decode": answers}


def text(words):
    return {"type": "text", "text": words}


IMAGE = {"type": "image"}
CONVERSATIONS = [
    [{"role": "user", "content": "Hello."}],
    [{"role": "system", "content": "Answer in German."}, {"role": "user", "content": "Hello."}],
    [{"role": "user", "content": [IMAGE, text("What is this?")]}],
    [{"role": "user", "content": [text("First "), IMAGE, text(" then "), IMAGE, text(" and last "), IMAGE]}],
    [{"role": "system", "content": [text("You count things.")]}, {"role": "user", "content": [text("How many?"), IMAGE]}],
    [
        {"role": "user", "content": [IMAGE, text("What is this?")]},
        {"role": "assistant", "content": [text("A boat.")]},
        {"role": "user", "content": [text("And this?"), IMAGE]},
        {"role": "assistant", "content": "Another boat, with <b>tags</b> & \"quotes\" {{ braces }} {% blocks %}."},
        {"role": "user", "content": "Thank you.\n\n  Trailing space \n"},
    ],
    [{"role": "user", "content": [text("")]}],
    [{"role": "user", "content": "请描述 <|im_end|> 😀\r\nend"}],
    [{"role": "tool", "content": "42"}, {"role": "assistant", "content": ""}],
]


def record_conversations(model):
    processor = AutoProcessor.from_pretrained(model)
    recorded = []
    for messages in CONVERSATIONS:
        for generation in (True, False):
            rendered = processor.apply_chat_template(messages, add_generation_prompt=generation, tokenize=False)
            recorded.append({"messages": messages, "add_generation_prompt": generation, "rendered": rendered})
    return recorded


def record_pictures(folder):
    folder.mkdir(exist_ok=True)
    processor = Qwen2VLImageProcessor(size={"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS})
    numbers = np.random.default_rng(0)
    recorded = []
    for name, data in all_pictures():
        (folder / name).write_bytes(data)
        # Turned as Exif says, and then what the processor makes of a PIL image: what is transparent is painted white.
        image = Image.fromarray(convert_to_rgb(ImageOps.exif_transpose(Image.open(folder / name)), return_numpy=True))
        image.save(folder / f"{name}.decoded.png", optimize=True)
        features = processor(images=[image], return_tensors="pt")
        grid, patches = features["image_grid_thw"][0].tolist(), features["pixel_values"]
        resized = unpatch(patches, grid, processor)
        Image.fromarray(resized).save(folder / f"{name}.resized.png", optimize=True)
        places = sorted(numbers.choice(patches.numel(), SAMPLES, replace=False).tolist())
        recorded.append({
            "name": name, "width": image.width, "height": image.height, "mode": Image.open(folder / name).mode, "grid": grid,
            "sum": patches.double().sum().item(), "samples": [[place, patches.flatten()[place].item()] for place in places],
        })
    return {"min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS, "pictures": recorded}


def unpatch(patches, grid, processor):
    """The resized image, from what the model would get."""
    _, rows, columns = grid
    values = patches.reshape(rows // MERGE, columns // MERGE, MERGE, MERGE, 3, FRAMES, PATCH, PATCH)
    assert torch.equal(values[:, :, :, :, :, 0], values[:, :, :, :, :, 1])
    values = values[:, :, :, :, :, 0].permute(0, 2, 5, 1, 3, 6, 4).reshape(rows * PATCH, columns * PATCH, 3)
    values = (values * torch.tensor(processor.image_std) + torch.tensor(processor.image_mean)) * 255
    assert (values - values.round()).abs().max() < 1e-3
    return values.round().to(torch.uint8).numpy()


def record_sizes():
    """Sizes that smart_resize rounds, cuts and enlarges: random ones, and those at which a division is just a half."""
    numbers = np.random.default_rng(5)
    recorded = []
    while len(recorded) < 400:
        height, width = (int(2 ** numbers.uniform(0, 13)) for _ in range(2)) if len(recorded) % 2 else numbers.integers(1, 40, 2) * 14
        lowest, highest = sorted(int(28 * 28 * 2 ** numbers.uniform(0, 12)) for _ in range(2))
        try:
            size = list(smart_resize(int(height), int(width), 28, lowest, highest))
        except ValueError:
            size = None
        recorded.append([int(height), int(width), lowest, highest, size])
    return recorded


def write_rows(model, out, pictures, count=0, seed=0):
    """Rows as a dataset, what becomes of each, and the templates that they name."""
    rows, recorded = record_rows(model, pictures, count, seed)
    (out / "rows.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_lines(out / "rows.json", recorded)
    (out / "templates").mkdir(exist_ok=True)
    for name in TEMPLATES:
        (out / f"templates/{name}.jinja").write_text(template_source(name))


def write_lines(path, value):
    """One record on a line, so that changes can be read."""
    if isinstance(value, list):
        inside = ",\n".join(json.dumps(one, ensure_ascii=False) for one in value)
        path.write_text(f"[\n{inside}\n]\n")
    else:
        parts = []
        for name, one in value.items():
            lines = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in one) + "\n]" if isinstance(one, list) else json.dumps(one)
            parts.append(f"{json.dumps(name)}: {lines}")
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--texts", type=int, default=300)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only-texts", action="store_true")
    arguments.add_argument("--only-rows", type=int, metavar="N", help="rows of public shapes, and N random ones with tools")
    arguments.add_argument("--only-examples", type=int, metavar="N", help="N random conversations and 5 N random answers")
    arguments = arguments.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only_examples:
        pictures = Path(__file__).parent / "recorded/pictures"
        write_lines(arguments.out / "examples.json", record_examples(arguments.model, pictures, arguments.only_examples, arguments.seed))
        write_lines(arguments.out / "selective.json", record_selective(arguments.model, 5 * arguments.only_examples, arguments.seed))
        return
    if arguments.only_rows is not None:
        write_rows(arguments.model, arguments.out, Path(__file__).parent / "recorded/pictures", arguments.only_rows, arguments.seed)
        return
    write_lines(arguments.out / "texts.json", record_texts(arguments.model, arguments.texts, arguments.seed))
    if arguments.only_texts:
        return
    write_lines(arguments.out / "conversations.json", record_conversations(arguments.model))
    write_lines(arguments.out / "sizes.json", record_sizes())
    write_lines(arguments.out / "pictures.json", record_pictures(arguments.out / "pictures"))
    write_lines(arguments.out / "examples.json", record_examples(arguments.model, arguments.out / "pictures"))
    write_lines(arguments.out / "borders.json", record_borders(arguments.model, arguments.out / "pictures"))
    write_lines(arguments.out / "selective.json", record_selective(arguments.model))
    write_rows(arguments.model, arguments.out, arguments.out / "pictures")


if __name__ == "__main__":
    main()
