#!/usr/bin/env python3
"""How many JPEGs become patches in a second: garden-data beside the image processors of transformers.

usage: pictures.py [--pictures 20] [--rounds 5] [--folder FOLDER]

Needs numpy, Pillow, torch, torchvision and transformers, and builds the example `pictures` of garden-data unless --binary names it. Makes
pictures of 2500 x 2450 (gradients, shapes, texture and noise; quality 90, 4:2:0), holds the files in memory, and goes from their bytes to
patches in turns: all ways, then all ways again. The best turn of each way counts. Prints JSON.
"""
import argparse
import concurrent.futures
import io
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTH, HEIGHT, QUALITY, MAX_PIXELS = 2500, 2450, 90, 1_003_520
# Levels of noise. Files become about 1.6 bits a pixel.
NOISE = 4


def photo(seed):
    """A picture with what photos have: light that changes slowly, things with edges, texture in places, and the noise of a sensor."""
    import numpy
    from PIL import Image, ImageDraw, ImageFilter

    random = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:HEIGHT, 0:WIDTH].astype(numpy.float32) / 1000
    light = [128 + 70 * numpy.sin(x * a + y * b + c) for a, b, c in random.uniform(-1.5, 1.5, (3, 3))]
    image = Image.fromarray(numpy.clip(numpy.stack(light, 2), 0, 255).astype(numpy.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(60):
        left, top, size = random.integers(0, WIDTH), random.integers(0, HEIGHT), random.integers(20, 500)
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape([int(left), int(top), int(left + size), int(top + size * random.uniform(0.3, 1.5))], fill=colour)
    image = image.filter(ImageFilter.GaussianBlur(1.2))
    pixels = numpy.asarray(image).astype(numpy.float32)
    # Texture in about a third of the picture: leaves, cloth, hair.
    where = numpy.clip(numpy.sin(3 * x + random.uniform(0, 6)) * numpy.sin(4 * y + random.uniform(0, 6)) * 2 - 0.4, 0, 1)
    texture = random.normal(0, 1, (HEIGHT // 2, WIDTH // 2)).astype(numpy.float32)
    texture = numpy.asarray(Image.fromarray(texture).resize((WIDTH, HEIGHT), Image.BICUBIC))
    pixels += (where * texture * 25)[..., None]
    pixels += random.normal(0, NOISE, pixels.shape)
    return Image.fromarray(numpy.clip(pixels, 0, 255).astype(numpy.uint8))


def make(folder, count):
    paths = []
    for seed in range(count):
        path = os.path.join(folder, f"photo-{seed}.jpg")
        if not os.path.exists(path):
            photo(seed).save(path, quality=QUALITY, subsampling="4:2:0")
        paths.append(path)
    return paths


def processors():
    """The fast and the slow one, by the names of transformers 5 or 4."""
    import transformers

    # Where the names have no "Fast", the plain one is that of torchvision.
    if hasattr(transformers, "Qwen2VLImageProcessorPil"):
        both = {"fast": transformers.Qwen2VLImageProcessor, "slow": transformers.Qwen2VLImageProcessorPil}
    else:
        both = {"fast": transformers.Qwen2VLImageProcessorFast, "slow": transformers.Qwen2VLImageProcessor}
    return {name: made(min_pixels=56 * 56, max_pixels=MAX_PIXELS) for name, made in both.items()}


STATE = {}


def prepare(paths):
    """What a process of Python holds."""
    import torch

    torch.set_num_threads(1)
    STATE["files"] = [open(path, "rb").read() for path in paths]
    STATE["processors"] = processors()


def python_one(way, number):
    """One picture, from bytes to patches."""
    from PIL import Image

    image = Image.open(io.BytesIO(STATE["files"][number]))
    image.load()
    if way == "decode":
        return image.size
    patches = STATE["processors"][way](images=[image.convert("RGB")], return_tensors="pt")
    return tuple(patches["pixel_values"].shape)


class Ours:
    """The example binary, which waits for what to do."""

    def __init__(self, binary, paths):
        self.child = subprocess.Popen([binary, str(MAX_PIXELS), *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def work(self, way, threads, rounds=1):
        print(way, threads, rounds, file=self.child.stdin, flush=True)
        seconds, peak = self.child.stdout.readline().split()
        return float(seconds), int(peak)


def largest_difference(binary, paths):
    """How far our patches of the first picture are from those of the fast processor."""
    import numpy
    from PIL import Image

    theirs = processors()["fast"](images=[Image.open(paths[0]).convert("RGB")], return_tensors="pt")["pixel_values"].numpy()
    with tempfile.NamedTemporaryFile() as file:
        ours = Ours(binary, paths[:1])
        print("save", file.name, file=ours.child.stdin, flush=True)
        ours.child.stdout.readline()
        return float(numpy.abs(numpy.fromfile(file.name, numpy.float32) - theirs.reshape(-1)).max())


def build():
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    subprocess.run(["cargo", "build", "--release", "-p", "garden-data", "--example", "pictures"], cwd=ROOT, check=True)
    return os.path.join(target, "release/examples/pictures")


def measure(options, paths):
    binary = options.binary or build()
    ours = Ours(binary, paths)
    prepare(paths)
    count, all_threads = len(paths), os.cpu_count()
    # Processes, as a DataLoader has them; patches stay where they are made, which is in Python's favour.
    context = multiprocessing.get_context("spawn")
    processes = concurrent.futures.ProcessPoolExecutor(all_threads, context, prepare, (paths,))
    threads = concurrent.futures.ThreadPoolExecutor(all_threads)
    numbers = list(range(count))

    def timed(work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    ways = {
        "ours, one thread": lambda: ours.work("patches", 1)[0],
        "fast, one thread": lambda: timed(lambda: [python_one("fast", number) for number in numbers]),
        "slow, one thread": lambda: timed(lambda: [python_one("slow", number) for number in numbers]),
        "ours, decoding": lambda: ours.work("decode", 1)[0],
        "PIL, decoding": lambda: timed(lambda: [python_one("decode", number) for number in numbers]),
        "ours, all threads": lambda: ours.work("patches", all_threads)[0],
        "fast, processes": lambda: timed(lambda: list(processes.map(python_one, ["fast"] * count, numbers))),
        "slow, processes": lambda: timed(lambda: list(processes.map(python_one, ["slow"] * count, numbers))),
        "fast, threads": lambda: timed(lambda: list(threads.map(python_one, ["fast"] * count, numbers))),
        "slow, threads": lambda: timed(lambda: list(threads.map(python_one, ["slow"] * count, numbers))),
    }
    ways = {name: way for name, way in ways.items() if not options.only or any(part in name for part in options.only.split(","))}
    seconds = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name, way in ways.items():
            took = way()
            # The first turn only warms up.
            if turn > 0:
                seconds[name].append(took)
        print(f"turn {turn} of {options.rounds}", file=sys.stderr)
    processes.shutdown()
    per_second = {name: round(count / min(times), 2) for name, times in seconds.items()}
    answer = {"pictures": count, "mean_bytes": sum(map(os.path.getsize, paths)) // count, "threads": all_threads,
              "pictures_per_second": per_second, "seconds_of_turns": {name: [round(one, 3) for one in times] for name, times in seconds.items()}}
    if not options.only:
        best = lambda name: max(per_second[f"{name}, processes"], per_second[f"{name}, threads"])
        one, many = per_second["ours, one thread"], per_second["ours, all threads"]
        answer["ratios"] = {
            "one thread, to fast": one / per_second["fast, one thread"], "one thread, to slow": one / per_second["slow, one thread"],
            "all threads, to fast": many / best("fast"), "all threads, to slow": many / best("slow"),
            "decoding, to PIL": per_second["ours, decoding"] / per_second["PIL, decoding"],
            "all threads, to one": many / one}
        answer["ratios"] = {name: round(ratio, 2) for name, ratio in answer["ratios"].items()}
    answer["largest_difference_to_fast"] = largest_difference(binary, paths)
    answer["memory"] = memory(binary, paths)
    return answer


def memory(binary, paths):
    """The most memory that a new process held after each 20 of 200 pictures, less the files."""
    ours = Ours(binary, paths)
    files = sum(map(os.path.getsize, paths))
    peaks = [ours.work("patches", 1)[1] - files for _ in range(max(1, 200 // len(paths)))]
    return {"peak_bytes_without_files": peaks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the pictures are kept (default: a temporary folder)")
    parser.add_argument("--binary", help="the built example `pictures`")
    parser.add_argument("--only", help="only ways whose names have one of these parts, with commas between")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        os.makedirs(folder, exist_ok=True)
        print(json.dumps(measure(options, make(folder, options.pictures)), indent=2))


if __name__ == "__main__":
    main()
