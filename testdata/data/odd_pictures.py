"""Writes `odd/`: pictures of which not everything is used, or that are not read, and what Pillow makes of them.

    venv/bin/python odd_pictures.py --out odd

Beside each picture that is read lies `NAME.decoded.png`: what `Image.open(NAME).convert("RGB")` gives, that is, the first frame or page. Needs Pillow.
"""

import argparse
import pathlib

from PIL import Image

SIZE = (24, 16)


def wave(shift, mode="RGB"):
    picture = Image.new("RGB", SIZE)
    picture.putdata([((9 * x + shift) % 256, (13 * y + 2 * shift) % 256, (x * y + shift) % 256) for y in range(SIZE[1]) for x in range(SIZE[0])])
    return picture.convert(mode)


def gray_16():
    picture = Image.new("I;16", SIZE)
    picture.putdata([37 * place % 700 for place in range(SIZE[0] * SIZE[1])])
    return picture


def main(out):
    out.mkdir(exist_ok=True)
    several = [wave(0), wave(60), wave(120)]
    rest = {"save_all": True, "append_images": several[1:]}
    several[0].save(out / "pages.tiff", **rest)
    several[0].save(out / "frames.gif", duration=50, **rest)
    several[0].save(out / "frames.png", duration=50, **rest)
    several[0].save(out / "default-image.png", duration=50, default_image=True, **rest)
    several[0].save(out / "frames.webp", duration=50, lossless=True, **rest)
    wave(0, "P").save(out / "one.gif")
    wave(0).save(out / "one.webp", lossless=True)
    wave(0).save(out / "one.tiff")
    gray_16().save(out / "gray-16.png")
    gray_16().save(out / "gray-16.tiff")
    wave(0, "CMYK").save(out / "cmyk.tiff")
    # Refused by their headers.
    wave(0).save(out / "jpeg.tiff", compression="jpeg")
    wave(0, "L").convert("F").save(out / "float.tiff")
    wave(0, "LAB").save(out / "lab.tiff")
    wave(0, "P").save(out / "palette.tiff")
    wave(0, "YCbCr").save(out / "ycbcr.tiff")
    wave(0, "I").save(out / "signed.tiff")
    wave(0).save(out / "one.avif")
    # Damaged behind their headers.
    for name in ("one.png", "one.jpg"):
        wave(0).save(out / name)
        data = (out / name).read_bytes()
        (out / name).write_bytes(data[: len(data) * 3 // 4])
    for name in ["pages.tiff", "frames.gif", "frames.png", "default-image.png", "frames.webp", "one.gif", "one.webp", "one.tiff", "gray-16.png", "gray-16.tiff", "cmyk.tiff"]:
        with Image.open(out / name) as picture:
            picture.convert("RGB").save(out / f"{name}.decoded.png")
            print(name, getattr(picture, "n_frames", 1), picture.mode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    main(parser.parse_args().out)
