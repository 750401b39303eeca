"""Rows to compare trainers with: drawn pictures of many sizes and answers in JSON, the same ones each time."""

import json
import random

from PIL import Image, ImageDraw

COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (40, 70, 200), "yellow": (220, 200, 60), "black": (20, 20, 20)}
SHAPES = ["circle", "square", "cross"]
# Smaller than `min_pixels`, larger than `max_pixels`, tall, wide, and just as large as they are read.
SIZES = [(56, 56), (84, 112), (40, 30), (300, 200), (61, 97), (28, 140), (150, 33), (112, 112)]
# A step of 4 micro-batches of 2 rows, all without pictures: a vision tower gets no gradient there.
WITHOUT_PICTURES = range(16, 24)


def draw(size, colour, shape, count, numbers):
    image = Image.new("RGB", size, tuple(numbers.randrange(180, 256) for _ in range(3)))
    pen = ImageDraw.Draw(image)
    for _ in range(count):
        side = max(4, min(size) // 3)
        left, top = (numbers.randrange(max(1, length - side)) for length in size)
        box = (left, top, left + side, top + side)
        if shape == "circle":
            pen.ellipse(box, fill=COLOURS[colour])
        elif shape == "square":
            pen.rectangle(box, fill=COLOURS[colour])
        else:
            pen.line(box, fill=COLOURS[colour], width=3)
            pen.line((left, top + side, left + side, top), fill=COLOURS[colour], width=3)
    return image


def text(words):
    return {"type": "text", "text": words}


def picture(name):
    return {"type": "image_url", "image_url": name}


def make_row(number, folder, numbers):
    def one(letter):
        colour, shape, count = numbers.choice(list(COLOURS)), numbers.choice(SHAPES), numbers.randrange(1, 6)
        name = f"pictures/{folder.name}-{number:02}{letter}.png"
        draw(SIZES[numbers.randrange(len(SIZES))], colour, shape, count, numbers).save(folder.parent / name)
        return name, {"colour": colour, "shape": shape, "count": count}

    def say(role, content):
        return {"role": role, "content": content}

    if number in WITHOUT_PICTURES or number % 13 == 12:
        first, second = numbers.randrange(100), numbers.randrange(100)
        return [say("user", f"What is {first} + {second}?"), say("assistant", json.dumps({"sum": first + second}))]
    name, answer = one("a")
    question = say("user", [picture(name), text("What is drawn?")])
    if number % 7 == 3:
        other, also = one("b")
        question = say("user", [text("Compare "), picture(name), text(" with "), picture(other)])
        return [say("system", "Answer in JSON."), question, say("assistant", json.dumps([answer, also], indent=1))]
    if number % 7 == 5:
        return [question, say("assistant", json.dumps(answer)), say("user", "How many?"), say("assistant", str(answer["count"]))]
    return [question, say("assistant", json.dumps(answer, ensure_ascii=False))]


def write_dataset(folder, name, rows, seed):
    """Writes NAME.jsonl (chats) and its pictures; returns the rows' messages."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    numbers = random.Random(seed)
    made = [make_row(number, folder / name, numbers) for number in range(rows)]
    lines = (json.dumps({"messages": messages}) + "\n" for messages in made)
    (folder / f"{name}.jsonl").write_text("".join(lines))
    return made
