#!/usr/bin/env python3
"""Measures `model-garden check`: seconds and the most memory that was held, for few rows and for many.

usage: check.py [--rows 1000,100000] [--pictures base64,paths] [--binary FILE] [--base-model DIR] [--folder FOLDER] [--output FILE]

Needs Pillow to make pictures: some hundred different JPEG files of 640 x 480 to 800 x 600, which all rows share; questions and answers
differ. Rows carry them as base64 in OpenAI's layout, or name their files. Data is made in a temporary folder and removed; 100,000 rows
take about 5 GB there. Prints JSON.
"""
import argparse
import base64
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURES = 200
SIZES = [(640, 480), (480, 640), (640, 640), (800, 600)]
WORDS = "the gate total sign receipt date number red blue of a left right above price name street is and 14 B2 2026".split()


def picture(seed):
    """A smooth picture with some text-like noise: about 40 kB, as photographs of this size are when saved for the web."""
    from PIL import Image

    numbers = random.Random(seed)
    size = SIZES[seed % len(SIZES)]
    small = Image.frombytes("RGB", (size[0] // 24, size[1] // 24), numbers.randbytes(size[0] // 24 * (size[1] // 24) * 3))
    file = io.BytesIO()
    small.resize(size, Image.BICUBIC).save(file, "JPEG", quality=70)
    return file.getvalue()


def sentence(numbers, most):
    return " ".join(numbers.choices(WORDS, k=numbers.randint(3, most)))


def write(folder, rows, way, pictures):
    path = os.path.join(folder, f"{way}-{rows}.jsonl")
    numbers = random.Random(rows)
    encoded = [base64.b64encode(data).decode() for data in pictures] if way == "base64" else None
    with open(path, "w") as file:
        for row in range(rows):
            number = numbers.randrange(len(pictures))
            url = f"data:image/jpeg;base64,{encoded[number]}" if encoded else f"pictures/{number}.jpg"
            image = {"type": "image_url", "image_url": {"url": url}}
            text = {"type": "text", "text": f"{row}: {sentence(numbers, 30)}?"}
            answer = json.dumps({"answer": sentence(numbers, 60), "row": row})
            messages = [{"role": "user", "content": [image, text]}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def peak_of(process):
    """The most that was resident. `ru_maxrss` would begin with what this program held when it forked."""
    with open(f"/proc/{process}/status") as status:
        lines = [line.split() for line in status if line.startswith("VmHWM")]
    return int(lines[0][1]) * 1024 if lines else None


def measure(binary, model, path):
    command = [binary, "check", path, "--base-model", model, "--format", "json"]
    begin = time.perf_counter()
    with open(os.devnull, "w") as quiet, tempfile.TemporaryFile() as answer:
        child = subprocess.Popen(command, stdout=answer, stderr=quiet)
        ended, peak = 0, 0
        while not ended:
            time.sleep(0.005)
            peak = peak_of(child.pid) or peak
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
        seconds = time.perf_counter() - begin
        answer.seek(0)
        found = json.load(answer)
    assert os.waitstatus_to_exitcode(status) == 0 and found["usable"] == found["rows"], found["problems"][:3]
    return {"rows": found["rows"], "file_bytes": os.path.getsize(path), "seconds": round(seconds, 2),
            "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2), "peak_resident_mb": round(peak / 1e6, 1),
            "tokens": found["tally"]["tokens"], "decoded_list_gb": round(found["memory"]["decoded_list_bytes"] / 1e9, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000,100000")
    parser.add_argument("--pictures", default="base64,paths")
    parser.add_argument("--binary", default=os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release/model-garden"))
    parser.add_argument("--base-model", default=os.path.join(ROOT, "testdata/tiny-model"))
    parser.add_argument("--folder", help="where the data is made (default: a temporary folder)")
    parser.add_argument("--output", help="write the answer to this file too")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(dir=options.folder)
    try:
        pictures = [picture(seed) for seed in range(PICTURES)]
        os.mkdir(os.path.join(folder, "pictures"))
        for number, data in enumerate(pictures):
            with open(os.path.join(folder, f"pictures/{number}.jpg"), "wb") as file:
                file.write(data)
        answer = {"cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 1), "mean_picture_bytes": sum(map(len, pictures)) // len(pictures), "runs": []}
        for way in options.pictures.split(","):
            for rows in map(int, options.rows.split(",")):
                path = write(folder, rows, way, pictures)
                run = {"pictures": way, **measure(options.binary, options.base_model, path)}
                print(json.dumps(run), file=sys.stderr)
                answer["runs"].append(run)
                os.remove(path)
        print(json.dumps(answer, indent=1))
        if options.output:
            with open(options.output, "w") as file:
                file.write(json.dumps(answer, indent=1) + "\n")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
