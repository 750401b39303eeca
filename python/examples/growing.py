"""A small training whose memory grows, for the way from the symptom to the fix in docs/leaking.md. Needs torch and Pillow.

    model-garden monitor --interval 100ms --examples 160 --batch-size 2 -o before.jsonl -- python growing.py
    model-garden bisect growing:pieces                  # the piece that makes it grow
    model-garden bisect growing:same                    # the test that cannot show it: one image, again and again
    model-garden monitor --interval 100ms --examples 160 --batch-size 2 -o after.jsonl -- python growing.py --lazy
    model-garden compare before.jsonl after.jsonl
    model-garden audit growing:loop -w gc.collect -w empty_cache -w lazy=True
"""
import io
import random
import sys
import time

import torch
from PIL import Image

from model_garden import LazyImages

EXAMPLES = 160
BATCH_SIZE = 2
STEPS = 320
SIDE = 64
# What a step of a real model would take: the monitor looks ten times a second.
LEAST_S = 0.05


def jpegs(count=EXAMPLES):
    """Different photographs of 1.2 megapixels, compressed."""
    compressed = []
    for number in range(count):
        small = Image.frombytes("RGB", (40, 30), random.Random(number).randbytes(40 * 30 * 3))
        stream = io.BytesIO()
        small.resize((1264, 948)).save(stream, "JPEG")
        compressed.append(stream.getvalue())
    return compressed


def opened():
    """The mistake: opened once, decoded at first use, kept with its pixels."""
    return [Image.open(io.BytesIO(jpeg)) for jpeg in jpegs()]


def collate(images):
    small = [image.convert("RGB").resize((SIDE, SIDE)).tobytes() for image in images]
    return torch.stack([torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in small]).float() / 255


def loss(outputs, batch):
    return outputs.square().mean()


def pieces(dataset=None):
    """What the training is made of."""
    model = torch.nn.Sequential(torch.nn.Linear(SIDE * SIDE * 3, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = opened() if dataset is None else dataset
    return {"dataset": dataset, "collator": collate, "model": model, "loss": loss, "optimizer": optimizer, "batch_size": BATCH_SIZE}


def fixed():
    """The same with images that are decoded at each access."""
    return pieces(LazyImages(jpegs()))


def same():
    """The same image for every example."""
    return pieces([Image.open(io.BytesIO(jpegs(1)[0]))] * EXAMPLES)


def loop(lazy=False):
    """The training, one epoch after the other; each `yield` ends a step."""
    made = fixed() if lazy else pieces()
    numbers = list(range(EXAMPLES))
    while True:
        random.shuffle(numbers)
        for place in range(0, EXAMPLES, BATCH_SIZE):
            batch = collate([made["dataset"][number] for number in numbers[place : place + BATCH_SIZE]])
            made["optimizer"].zero_grad()
            loss(made["model"](batch), batch).backward()
            made["optimizer"].step()
            yield


if __name__ == "__main__":
    steps = loop(lazy="--lazy" in sys.argv)
    for step in range(1, STEPS + 1):
        begin = time.monotonic()
        next(steps)
        time.sleep(max(0.0, LEAST_S - (time.monotonic() - begin)))
        print(f"Step {step}", flush=True)
