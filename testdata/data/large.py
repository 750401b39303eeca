#!/usr/bin/env python3
"""Makes large/: pictures of 1200 x 900 pixels in small files of every kind, to see what decoding them holds in memory.

usage: large.py    (needs Pillow and numpy)
"""
from pathlib import Path

import numpy
from PIL import Image, ImageDraw

FOLDER = Path(__file__).resolve().parent / "large"
SIZE = (1200, 900)


def drawn(mode):
    """A rectangle on a ground of one colour."""
    channels = len(mode)
    picture = Image.new(mode, SIZE, (180, 200, 220, 255)[:channels])
    ImageDraw.Draw(picture).rectangle((100, 100, 700, 500), fill=(200, 30, 40, 120)[:channels])
    return picture


def main():
    FOLDER.mkdir(exist_ok=True)
    rgb, rgba = drawn("RGB"), drawn("RGBA")
    numbered = rgb.quantize(4, dither=Image.Dither.NONE)
    turned = Image.Exif()
    turned[0x0112] = 6
    second = Image.new("RGBA", SIZE, (1, 2, 3, 255))
    frames = {"save_all": True, "append_images": [second], "duration": 100}
    for name, picture, options in [
        ("sequential.jpg", rgb, {"quality": 70}),
        ("progressive.jpg", rgb, {"quality": 70, "progressive": True}),
        ("turned.jpg", rgb, {"quality": 70, "exif": turned}),
        ("rgb.png", rgb, {"optimize": True}),
        ("rgba.png", rgba, {"optimize": True}),
        ("turned.png", rgba, {"optimize": True, "exif": turned}),
        ("gray.png", rgb.convert("L"), {"optimize": True}),
        ("gray-16.png", Image.fromarray(numpy.full(SIZE[::-1], 3000, numpy.uint16)), {}),
        ("palette.png", numbered, {"optimize": True}),
        ("palette.gif", numbered, {}),
        ("rgb.tiff", rgb, {"compression": "tiff_adobe_deflate"}),
        ("rgba.tiff", rgba, {"compression": "tiff_adobe_deflate"}),
        ("bits.tiff", rgb.convert("1", dither=Image.Dither.NONE), {"compression": "tiff_adobe_deflate"}),
        ("lossy.webp", rgb, {"quality": 70}),
        ("alpha-lossy.webp", rgba, {"quality": 70}),
        ("lossless.webp", rgb, {"lossless": True}),
        ("alpha.webp", rgba, {"lossless": True}),
        ("frames.webp", rgba, {"lossless": True, **frames}),
        ("frames-lossy.webp", rgba, {"quality": 60, **frames}),
    ]:
        picture.save(FOLDER / name, **options)


if __name__ == "__main__":
    main()
