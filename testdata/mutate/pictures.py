#!/usr/bin/env python3
"""Damages pictures of all formats, and compares which of them Pillow and our decoder refuse.

usage: pictures.py [--binary target/debug/examples/decodes] [--count 1600] [--seed 1] [--pictures FOLDER] [--keep FOLDER]

Each picture of testdata/data/recorded/pictures (or of another folder) is cut off, has bits turned, bytes exchanged, repeated or left out. Pillow opens and loads it as
transformers does; ours is `cargo build -p garden-data --example decodes`. What Pillow refuses and we accept would be trained on as noise, so each such file
is listed, with what Pillow says (and kept with --keep); what only we refuse is counted by what we say. Needs Pillow; exits with 1 if we accept something that Pillow
refuses.
"""

import argparse
import collections
import io
import random
import subprocess
import sys
import warnings
from pathlib import Path

from PIL import Image, ImageOps

from mutate import DATA, ROOT, changed_bytes


def pillow(data):
    """What Pillow says against a picture; nothing if it loads."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = Image.open(io.BytesIO(data))
            picture.load()
            ImageOps.exif_transpose(picture).convert("RGB")
        return None
    except Exception as error:  # Whatever its plugins raise.
        return f"{type(error).__name__}: {error}"[:100]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/debug/examples/decodes")
    parser.add_argument("--count", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pictures", type=Path, default=DATA / "recorded/pictures")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    originals = sorted(path for path in arguments.pictures.iterdir() if not path.name.endswith((".decoded.png", ".resized.png")))
    ours = subprocess.Popen([arguments.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    both, counts, only_ours, accepted = 0, collections.Counter(), collections.Counter(), []
    for number in range(arguments.count):
        draw = random.Random(f"{arguments.seed} {number}")
        path = draw.choice(originals)
        data = changed_bytes(draw, path.read_bytes())
        data = bytes(data)
        ours.stdin.write(len(data).to_bytes(8, "little") + data)
        ours.stdin.flush()
        answer = ours.stdout.readline().decode().rstrip("\n")
        if not answer:
            print(f"error: our decoder ended at case {number} ({path.name})", file=sys.stderr)
            sys.exit(2)
        refused, theirs = answer != "fine", pillow(data)
        counts[(theirs is not None, refused)] += 1
        if theirs is not None and not refused:
            accepted.append((number, path.name, theirs))
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / f"{number}-{path.name}").write_bytes(data)
        if theirs is None and refused:
            only_ours[answer[:60]] += 1
    for number, name, theirs in accepted:
        print(f"accepted: case {number} of {name}; Pillow: {theirs}")
    for words, count in only_ours.most_common(12):
        print(f"only we refuse: {count} x {words}")
    print(
        f"seed {arguments.seed}: {arguments.count} damaged pictures; Pillow refuses {counts[(True, True)] + counts[(True, False)]}, of which we accept "
        f"{counts[(True, False)]}; Pillow accepts {counts[(False, True)] + counts[(False, False)]}, of which we refuse {counts[(False, True)]}"
    )
    sys.exit(1 if accepted else 0)


if __name__ == "__main__":
    main()
