"""Pieces for `model-garden bisect`: photographs through transformers' Qwen2-VL image processor, kept in the usual wrong way and in the right one.

    model-garden bisect photographs:opened      # `Image.open(BytesIO(..))` in a list: decoded at first use, and kept
    model-garden bisect photographs:lazy        # the same JPEGs in LazyImages

Needs torch, torchvision, transformers and Pillow. PHOTOGRAPHS, WIDTH and HEIGHT set how many there are and their size.
"""
import io
import os
import random

from PIL import Image
from transformers import Qwen2VLImageProcessor

from model_garden import LazyImages

PHOTOGRAPHS = int(os.environ.get("PHOTOGRAPHS", 64))
WIDTH = int(os.environ.get("WIDTH", 2500))
HEIGHT = int(os.environ.get("HEIGHT", 2450))


def jpegs():
    """Different photographs, as compressed bytes."""
    compressed = []
    for number in range(PHOTOGRAPHS):
        source = random.Random(number)
        small = Image.frombytes("RGB", (50, 49), bytes(source.randrange(256) for _ in range(3 * 50 * 49)))
        stream = io.BytesIO()
        small.resize((WIDTH, HEIGHT), Image.BICUBIC).save(stream, "JPEG", quality=85)
        compressed.append(stream.getvalue())
    return compressed


def processor():
    """The processor as Qwen2.5-VL is used on small machines: at most 1,280 image tokens."""
    image_processor = Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=1280 * 28 * 28)
    return lambda image: image_processor(images=image, return_tensors="pt")


def collate(examples):
    """Patches of all images of a batch behind each other."""
    import torch

    return {name: torch.cat([example[name] for example in examples]) for name in ("pixel_values", "image_grid_thw")}


def opened():
    """The mistake: each image is opened once, which reads its header, and kept."""
    return {"dataset": [Image.open(io.BytesIO(jpeg)) for jpeg in jpegs()], "processor": processor(), "collator": collate}


def lazy():
    """The same with LazyImages: compressed bytes are kept, and every access decodes anew."""
    return {"dataset": LazyImages(jpegs()), "processor": processor(), "collator": collate}
