"""Host memory while going through a dataset of large photographs for three epochs: ours, and the usual way in Python.

    cargo build --release -p model-garden && cargo build --release -p garden-data --example epochs
    python bench/epochs.py --rows 663            # makes 1 GB of photographs under /tmp, runs ours, asks `diagnose`
    python bench/epochs.py --rows 6630           # ten times as many rows: the same memory
    python bench/epochs.py --rows 663 --python   # the same loop as people write it: 4 bytes for each pixel stay (16 GB)

Needs Pillow and numpy; `--python` also transformers, torch and torchvision.
"""

import argparse
import base64
import io
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZE = (2500, 2450)
DISTINCT = 663


def photograph(seed):
    """A JPEG of about a megabyte: soft shapes and the grain of a sensor."""
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(seed)
    soft = Image.fromarray(random.integers(0, 256, (25, 25, 3), dtype=numpy.uint8)).resize(SIZE, Image.BICUBIC)
    grain = random.integers(-9, 10, (SIZE[1] // 2, SIZE[0] // 2, 1), dtype=numpy.int16).repeat(2, 0).repeat(2, 1)
    pixels = numpy.clip(numpy.asarray(soft, dtype=numpy.int16) + grain, 0, 255).astype(numpy.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=85)
    return file.getvalue()


def with_comment(jpeg, text):
    """The same photograph as another file: with a comment behind its first two bytes."""
    return jpeg[:2] + b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text + jpeg[2:]


def make(path, rows):
    """A row for each photograph; beyond 663 rows the photographs come again with other comments."""
    if path.exists():
        return
    import concurrent.futures

    draft = path.with_suffix(".part")
    with concurrent.futures.ProcessPoolExecutor() as pool, open(draft, "w") as out:
        kept = list(pool.map(photograph, range(min(rows, DISTINCT)), chunksize=8))
        for row in range(rows):
            jpeg = with_comment(kept[row % DISTINCT], f"row {row}".encode())
            url = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": f"Photograph {row}?"}]
            answer = {"role": "assistant", "content": json.dumps({"number": row})}
            out.write(json.dumps({"messages": [{"role": "user", "content": content}, answer]}) + "\n")
    draft.rename(path)


def usual_python(path, max_pixels, steps):
    """The loop of the story: pictures are opened into a list, and what is decoded for a batch stays in it."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor

    torch.set_num_threads(1)
    rows = []
    for line in open(path):
        row = json.loads(line)
        url = row["messages"][0]["content"][0]["image_url"]["url"]
        rows.append(Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1]))))
    processor = AutoImageProcessor.from_pretrained(ROOT / "testdata/tiny-model", max_pixels=max_pixels)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(42)).tolist()
    for step in range(1, steps + 1):
        for first in range((step - 1) * 8, step * 8, 2):
            chosen = [rows[order[place % len(rows)]] for place in (first, first + 1)]
            processor(images=chosen, return_tensors="pt")
        print(f"step {step}/{steps}", flush=True)


def run(command, trace, facts):
    """Watches a command, then asks for the verdict on its trace."""
    binary = ROOT / "target/release/model-garden"
    begin = time.time()
    subprocess.run([binary, "monitor", "--plain", "--interval", "250ms", "-o", trace, *facts, "--", *command], check=False,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.time() - begin
    told = subprocess.run([binary, "diagnose", trace, *facts, "--format", "json"], capture_output=True, text=True)
    most = max(int(line.split('"rss":')[1].split(",")[0]) for line in open(trace) if '"rss":' in line)
    verdict = json.loads(told.stdout)
    return {"seconds": round(seconds, 1), "most_resident_bytes": most, "verdict": verdict["verdict"], "summary": verdict["summary"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=663)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-pixels", type=int, default=1_003_520)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefetch", type=int, default=64 << 20)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/tmp/model-garden-epochs"))
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--usual", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    path = arguments.folder / f"photographs-{arguments.rows}.jsonl"
    if arguments.usual:
        return usual_python(path, arguments.max_pixels, arguments.usual)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(path, arguments.rows)
    steps = arguments.epochs * -(-arguments.rows // 8)
    facts = ["--examples", str(arguments.rows), "--batch-size", "2", "--gradient-accumulation", "4"]
    if arguments.python:
        command = [sys.executable, __file__, "--rows", str(arguments.rows), "--usual", str(steps // arguments.epochs + 20)]
        command += ["--max-pixels", str(arguments.max_pixels), "--folder", str(arguments.folder)]
    else:
        command = [ROOT / "target/release/examples/epochs", path, ROOT / "testdata/tiny-model", str(arguments.max_pixels),
                   str(arguments.epochs), "2", "4", str(arguments.threads), str(arguments.prefetch)]
    name = "python" if arguments.python else "ours"
    result = run(command, arguments.folder / f"{name}-{arguments.rows}.trace.jsonl", facts)
    about = {"who": name, "rows": arguments.rows, "file_bytes": path.stat().st_size, "cores": os.cpu_count(), **vars(arguments)}
    print(json.dumps({**{key: str(value) if isinstance(value, pathlib.Path) else value for key, value in about.items()}, **result}))


if __name__ == "__main__":
    main()
