#!/usr/bin/env python3
"""Runs every benchmark of this folder and writes what they say, with date and machine, as one Markdown file.

    python3 bench/all.py                                     # some parts need packages and are skipped without them
    python3 bench/all.py --parts judge,server                # some of them
    python3 bench/all.py --python VENV/bin/python            # a Python that has psutil, Pillow, numpy, torch, transformers and peft

`make bench-all` calls it. Each part is a program of its own that can be run alone; docs/benchmarks.md, bench/README.md and the pages named there have the figures that
were measured on a known machine. A part that fails is told at the end, and the exit code is then 1.
"""
import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parts(binary, python):
    """Name, what it measures, its command, and the packages that it needs."""
    bench = lambda name, *words: [python, str(ROOT / "bench" / name), *words]
    return [
        ("judge", "The judge beside the usual detectors", bench("detectors.py", "--binary", binary), []),
        ("reading", "Reading and judging small and large traces", ["cargo", "bench", "--locked", "-p", "model-garden"], []),
        ("watcher", "What watching costs", bench("watch.py", "--binary", binary, "--quick", "--output", str(ROOT / "target/bench-watch.json")), []),
        ("loader", "Checking a dataset", bench("check.py", "--binary", binary, "--rows", "1000,10000"), ["PIL"]),
        ("loading", "Loading a checkpoint in 4 bits", bench("loading.py"), []),
        ("pictures", "From JPEG to patches, beside transformers", bench("pictures.py"), ["PIL", "numpy", "torch", "torchvision", "transformers"]),
        ("trainer", "A training step", [binary, "bench", "--shape", "tiny"], []),
        ("engine", "Training steps beside PyTorch on the CPU", bench("engine.py", "--python", python), ["torch", "transformers", "peft"]),
        ("gpu", "Training steps on a GPU, as ratios to what is recorded", [python, str(ROOT / "testdata/gpu/bench.py"), "--binary", binary], ["GPU"]),
        ("export", "Merging an adapter", bench("export.py", "--program", binary), []),
        ("server", "The server under load", bench("serve_load.py", "--binary", binary), []),
    ]


def lacks(python, needed):
    """What of it is not here."""
    if needed == ["GPU"]:
        return [] if shutil.which("nvidia-smi") and not subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode else ["a GPU"]
    return [name for name in needed if subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode]


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    with open("/proc/meminfo", encoding="utf-8") as lines:
        kib = int(lines.readline().split()[1])
    return f"{len(os.sched_getaffinity(0))} cores ({names[0] if names else platform.machine()}), {kib / 2**20:.0f} GiB, Linux {platform.release()}"


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--binary", default=str(ROOT / "target/release/model-garden"))
    words.add_argument("--python", default=sys.executable)
    words.add_argument("--parts", help="names with commas between [default: all]")
    words.add_argument("--output", type=Path, help="[default: target/bench-DATE.md]")
    options = words.parse_args()
    known = parts(os.path.abspath(options.binary), options.python)
    wanted = options.parts.split(",") if options.parts else [part[0] for part in known]
    unknown = set(wanted) - {part[0] for part in known}
    if unknown:
        words.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(part[0] for part in known)}")
    version = subprocess.run([options.binary, "--version"], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    today = datetime.date.today()
    output = options.output or ROOT / f"target/bench-{today}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    with open(output, "w", encoding="utf-8") as page:
        def tell(text):
            print(text, flush=True)
            print(text, file=page, flush=True)

        tell(f"# Benchmarks\n\n{today:%d %B %Y}; {machine()}; {version} ({commit}); load {os.getloadavg()[0]:.1f} at the start.")
        for name, title, command, needed in known:
            if name not in wanted:
                continue
            tell(f"\n## {title}\n")
            missing = lacks(options.python, needed)
            if missing:
                tell(f"skipped: it needs {', '.join(missing)}")
                continue
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            tell(done.stdout.strip() if done.returncode == 0 else f"failed with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            tell(f"\n({name}: {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f})")
            if done.returncode:
                failed.append(name)
    print(f"\nwritten: {output}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
