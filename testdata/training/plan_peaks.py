#!/usr/bin/env python3
"""Is memory known before step 1? Trains in real processes under thirty configurations and compares the plan with the most that was resident.

    python3 testdata/training/plan_peaks.py --binary target/release/model-garden --work FOLDER [--only NAME...]

Needs Pillow, but for the configurations that have no pictures, or PNG files of 8 bits. The measured figure is what the kernel has as VmHWM of the process that trains, at its
end; the planned one is that of `plan`. A configuration fails if more was resident than was planned, or if more than 10 % too much was planned; pictures of
very different sizes may be planned higher, as the two largest may be decoded at the same moment, and need not be. Exit code 1 if one fails.
"""

import argparse
import json
import random
import shutil
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from large_vocabulary import TINY, write_model

ROOT = TINY.parent.parent
MIB = 2**20
STACK = 2**17
MOST_TOO_HIGH = 10.0
ROWS = 16


@dataclass
class Configuration:
    # A kind of picture, or none; its width and height.
    kind: str = ""
    size: tuple = (0, 0)
    has_large_vocabulary: bool = False
    # Words of a row's text.
    words: int = 20
    flags: list = field(default_factory=list)
    # Whether pictures are of many sizes.
    is_mixed: bool = False


def picture(kind, width, height, **more):
    more.setdefault("flags", ["--max-pixels", "401408"])
    return Configuration(kind=kind, size=(width, height), **more)


SMALL = ["--max-pixels", "50176"]
CONFIGURATIONS = {
    # Rows of text.
    "text": Configuration(),
    "text-long": Configuration(words=400, flags=["--batch-size", "4"]),
    "text-vocabulary": Configuration(has_large_vocabulary=True),
    "text-vocabulary-long": Configuration(has_large_vocabulary=True, words=400, flags=["--batch-size", "4"]),
    "text-vocabulary-full": Configuration(has_large_vocabulary=True, flags=["--full"]),
    "text-vocabulary-4bit": Configuration(has_large_vocabulary=True, flags=["--load-in-4bit"]),
    "text-vocabulary-answers": Configuration(has_large_vocabulary=True, flags=["--eval-split", "0.25", "--eval-answers", "4", "--max-new-tokens", "8"]),
    "text-vocabulary-rank": Configuration(has_large_vocabulary=True, flags=["--lora-r", "128", "--optim", "adamw-8bit"]),
    "text-vocabulary-tokens": Configuration(has_large_vocabulary=True, flags=["--batch-tokens", "600"]),
    "text-full": Configuration(flags=["--full", "--recompute", "none"]),
    # Pictures, all of a size, so that two are decoded at the same moment as the plan has it.
    "png": picture("png", 640, 480),
    "png-vocabulary": picture("png", 640, 480, has_large_vocabulary=True),
    "png-large": picture("png", 4000, 3000, flags=["--max-pixels", "401408", "--batch-size", "1"]),
    "png-opacity": picture("png-opacity", 1600, 1200),
    "png-palette": picture("png-palette", 1600, 1200),
    "png-16-bits": picture("png-16-bits", 1600, 1200),
    "jpeg": picture("jpeg", 1600, 1200),
    "jpeg-vocabulary": picture("jpeg", 1600, 1200, has_large_vocabulary=True, flags=SMALL),
    "jpeg-large": picture("jpeg", 5000, 4000, flags=[*SMALL, "--batch-size", "1"]),
    "jpeg-progressive": picture("jpeg-progressive", 1600, 1200),
    "jpeg-cmyk": picture("jpeg-cmyk", 1600, 1200),
    "jpeg-rotated": picture("jpeg-rotated", 1600, 1200),
    "webp": picture("webp", 1600, 1200),
    "webp-lossless": picture("webp-lossless", 1600, 1200),
    "gif": picture("gif", 1600, 1200),
    "bmp": picture("bmp", 1600, 1200),
    "tiff": picture("tiff", 1600, 1200),
    "tiff-cmyk": picture("tiff-cmyk", 1600, 1200),
    "png-threads": picture("png", 1600, 1200, flags=[*SMALL, "--loader-threads", "4", "--prefetch", "64MB", "--threads", "1"]),
    "mixed": picture("jpeg-progressive", 3000, 2000, is_mixed=True),
}


def png(path, width, height):
    """A picture of noise in RGB, without any package."""
    draw = random.Random(width)
    rows = b"".join(b"\0" + draw.randbytes(3 * width) for _ in range(height))
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


# Ending, mode and options of Pillow.
KINDS = {
    "png-opacity": ("png", "RGBA", {"compress_level": 1}),
    "png-palette": ("png", "P", {"compress_level": 1}),
    "png-16-bits": ("png", "I;16", {"compress_level": 1}),
    "jpeg": ("jpg", "RGB", {"quality": 85}),
    "jpeg-progressive": ("jpg", "RGB", {"quality": 85, "progressive": True}),
    "jpeg-cmyk": ("jpg", "CMYK", {"quality": 85}),
    "jpeg-rotated": ("jpg", "RGB", {"quality": 85, "exif": True}),
    "webp": ("webp", "RGB", {"quality": 80, "method": 0}),
    "webp-lossless": ("webp", "RGB", {"lossless": True, "quality": 0, "method": 0}),
    "gif": ("gif", "P", {}),
    "bmp": ("bmp", "RGB", {}),
    "tiff": ("tiff", "RGB", {"compression": "tiff_lzw"}),
    "tiff-cmyk": ("tiff", "CMYK", {}),
}


def draw_picture(kind, path, width, height):
    if kind == "png":
        return png(path, width, height)
    from PIL import Image

    _, mode, options = KINDS[kind]
    noise = Image.frombytes("RGB", (200, 150), random.Random(3).randbytes(3 * 200 * 150)).resize((width, height), Image.BICUBIC)
    if options.get("exif"):
        exif = Image.Exif()
        exif[274] = 6
        options = {**options, "exif": exif}
    image = noise.convert("L").convert("I").point(lambda value: value * 256 + 128).convert("I;16") if mode == "I;16" else noise.convert(mode)
    image.save(path, **options)


def write_rows(folder, configuration):
    """The rows, and their pictures."""
    folder.mkdir(parents=True)
    (width, height), kind = configuration.size, configuration.kind
    ending = "png" if kind == "png" else KINDS[kind][0] if kind else ""
    drawn, lines = random.Random(5), []
    for number in range(ROWS):
        row = {"prompt": f"Number {number}: " + "of many words " * (configuration.words // 3), "response": str(number * 7)}
        if kind:
            path = folder / f"{number}.{ending}"
            share = 1.0 if not configuration.is_mixed else drawn.uniform(0.1, 1.0)
            first = folder / f"0.{ending}"
            if number > 0 and not configuration.is_mixed:
                shutil.copy(first, path)
            else:
                draw_picture(kind, path, int(width * share), int(height * share))
            row["image"] = str(path)
        lines.append(json.dumps(row) + "\n")
    (folder / "train.jsonl").write_text("".join(lines))


def measure(binary, model, folder, configuration, device, is_any_build):
    """What was planned and resident, in bytes."""
    write_rows(folder, configuration)
    command = [binary, "train-vision", "--model", str(model), "--dataset", str(folder / "train.jsonl"), "--output-dir", str(folder / "out"), "--device", device]
    command += ["--max-steps", "12", "--warmup-steps", "0", "--gradient-accumulation", "1", "--save-steps", "6", "--threads", "2", *configuration.flags, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    told = json.loads(done.stdout)
    lines = {line["purpose"]: line["bytes"] for line in told["plan"]["lines"]}
    # What a GPU holds is not resident here.
    planned = told["plan"]["total_bytes" if device == "cpu" else "host_bytes"]
    if is_any_build:
        planned += program_pages(folder / "out" / "trace.jsonl") + program_data(binary) - lines["program"]
    return planned, told["result"]["resident"]["peak"], lines


def program_data(binary):
    """What the program writes of its own at the start: the parts of its file that may be written (ELF's program headers), and its first stack."""
    with open(binary, "rb") as file:
        head = file.read(64)
        (first,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
        file.seek(first)
        parts = [struct.unpack_from("<IIQQQQQQ", file.read(size)) for _ in range(count)]
    loaded, writable = 1, 2
    return STACK + sum(part[6] for part in parts if part[0] == loaded and part[1] & writable)


def program_pages(trace):
    """Pages of files that were resident once training had begun: those of the program, whose weights are copies by then."""
    samples = [json.loads(line) for line in trace.read_text().splitlines()]
    return max(sample["file"] for sample in samples if sample.get("step", 0) > 0 and "file" in sample)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--work", required=True, help="a folder for models, pictures and runs; emptied")
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--any-build", action="store_true", help="take the program's own pages as measured: those of a debug build are more than planned")
    parser.add_argument("--lines", action="store_true", help="show the plan's lines too")
    arguments = parser.parse_args()
    binary, work = str(Path(arguments.binary).resolve()), Path(arguments.work).resolve()
    shutil.rmtree(work, ignore_errors=True)
    large = work / "large-vocabulary"
    if any(CONFIGURATIONS[name].has_large_vocabulary for name in arguments.only):
        write_model(large)
    failed = []
    print(f"{'configuration':<24} {'planned':>9} {'resident':>9} {'too high':>9}")
    for name in arguments.only:
        configuration = CONFIGURATIONS[name]
        folder = work / name
        planned, resident, lines = measure(binary, large if configuration.has_large_vocabulary else TINY, folder, configuration, arguments.device, arguments.any_build)
        above = 100 * (planned / resident - 1)
        is_good = planned >= resident and (above <= MOST_TOO_HIGH or configuration.is_mixed)
        failed += [] if is_good else [name]
        print(f"{name:<24} {planned / MIB:>5.1f} MiB {resident / MIB:>5.1f} MiB {above:>+7.1f} %{'' if is_good else '  FAILED'}", flush=True)
        if arguments.lines:
            print("   " + ", ".join(f"{purpose} {amount / MIB:.1f}" for purpose, amount in lines.items()))
        shutil.rmtree(folder)
    print(f"{len(arguments.only) - len(failed)} of {len(arguments.only)} configurations are planned as they are")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
