#!/usr/bin/env python3
"""Sends damaged and hostile input of all kinds through the command line, and says which of it ends badly.

usage: mutate.py [--binary target/debug/model-garden] [--count 5000] [--seed 1] [--only NUMBER] [--kind NAME] [--keep FOLDER]

A case ends badly if the program panics or is ended by a signal, exits with a code that is none of ours (0 to 3), runs for more than 20 seconds, or
reaches 2 GB of memory. Case NUMBER of a seed is the same each time, whatever the others are: --only repeats it and shows what the program says. Inputs
that end badly are kept. Needs Python alone; exits with 1 if something ended badly.
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA, MODEL = ROOT / "testdata/data", ROOT / "testdata/tiny-model"
PATIENCE, MOST_BYTES, CODES = 20, 2_000_000_000, {0, 1, 2, 3}
MODEL_FILES = ["config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"]

BOXES = "\n".join(json.dumps(row) for row in [
    {"messages": [{"role": "user", "content": "<image>Where is <ref-object>?"}, {"role": "assistant", "content": '[{"bbox_2d": <bbox>, "label": "a"}, {"bbox_2d": <bbox>}]'}], "images": [str(DATA / "recorded/pictures/420.jpg")], "objects": {"ref": ["a boat"], "bbox": [[1, 2, 30.5, 40], [3, 4]], "bbox_type": "real", "image_id": [0, 0]}},
    {"messages": [{"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": "<bbox>"}], "images": [str(DATA / "recorded/pictures/rgb-large.png")], "objects": {"ref": [], "bbox": [[0.1, 0.2, 0.9, 1]], "bbox_type": "norm1"}},
    {"prompt": "Where?", "image": str(DATA / "recorded/pictures/rgb-large.png"), "response": '[{"bbox_2d": [1, 2, 30, 40], "label": "a"}]'},
])

NUMBERS = [0, -1, 1, 2, 3, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 1e308, -1e-308, 0.5, 1e400]
TEXTS = ["", " ", "\0", "a" * 70_000, "\u001b[2J\u009b", "<image>" * 40, "<|im_end|>", "../../etc/passwd", "/dev/zero", "/dev/stdin", "file:///etc/hostname", "http://a/b.png", "data:image/png;base64,", "data:;base64,iVBORw0KGgo=", "\ud800", "\U0010ffff" * 9, "%s%n", "{{ 1 }}"]


def value(draw, depth=0):
    """Some JSON."""
    kind = draw.randrange(8 if depth < 4 else 5)
    if kind < 2:
        return draw.choice(NUMBERS[:-1])
    if kind < 4:
        return draw.choice(TEXTS)
    if kind == 4:
        return draw.choice([None, True, False])
    if kind == 5:
        return [value(draw, depth + 1) for _ in range(draw.randrange(5))]
    if kind == 6:
        return {draw.choice(["role", "content", "type", "text", "image", "a", "", "bytes", "path"]): value(draw, depth + 1) for _ in range(draw.randrange(4))}
    nested = value(draw, 9)
    for _ in range(draw.choice([3, 120, 130, 5000])):
        nested = [nested] if draw.random() < 0.5 else {"a": nested}
        if draw.random() < 0.001:
            break
    return nested


def places(tree, way=()):
    """All ways into a tree of JSON."""
    yield way
    if len(way) > 12:
        return
    if isinstance(tree, dict):
        for name in list(tree):
            yield from places(tree[name], way + (name,))
    elif isinstance(tree, list):
        for index in range(min(len(tree), 40)):
            yield from places(tree[index], way + (index,))


def changed_json(draw, text):
    """The same JSON with values exchanged, left out or repeated."""
    tree = json.loads(text)
    for _ in range(draw.choice([1, 1, 2, 4])):
        ways = [way for way in places(tree) if way]
        if not ways:
            break
        way = draw.choice(ways)
        inside = tree
        for step in way[:-1]:
            inside = inside[step]
        if draw.random() < 0.2:
            del inside[way[-1]]
        else:
            inside[way[-1]] = value(draw)
    depth = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        text = json.dumps(tree, ensure_ascii=draw.random() < 0.5)
    finally:
        sys.setrecursionlimit(depth)
    return text.encode("utf-8", "surrogatepass")


def changed_tensors(draw, data):
    """A file of tensors with another header, or other bytes."""
    if draw.random() < 0.3:
        return changed_bytes(draw, data)
    length = int.from_bytes(data[:8], "little")
    header = changed_json(draw, data[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def changed_bytes(draw, data):
    """The same bytes cut off, with some of them others, repeated, left out or exchanged."""
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 3, 8])):
        if not data:
            break
        # Headers are where it matters.
        at = draw.randrange(min(len(data), draw.choice([64, 600, len(data)])))
        size = draw.choice([1, 1, 2, 4, 8, 100])
        kind = draw.randrange(7)
        if kind == 0:
            del data[draw.randrange(len(data)) :]
        elif kind == 1:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data[at : at + size] = draw.randbytes(size)
        elif kind == 3:
            data[at : at + size] = bytes([draw.choice([0, 255, 127, 128])]) * min(size, len(data) - at)
        elif kind == 4:
            del data[at : at + size]
        elif kind == 5:
            data[at:at] = data[at : at + size] * draw.choice([1, 2, 50])
        else:
            other = draw.randrange(len(data))
            data[at : at + size] = data[other : other + size]
    return bytes(data)


def template(draw):
    """A chat template of pieces that are usual and of pieces that are not."""
    atoms = ["messages", "messages[0]", "m.content", "m.role", "n.x", "n", "loop", "'x'", "1", "[]", "{}", "none", "range(100000)", "'%99999d'", "'ab' * 1000000", "namespace(x=n)", "undefined.x", "tools", "-1", "2**64", "1.5"]
    filters = ["|length", "|tojson", "|tojson(indent=999999999)", "|join(m.content)", "|replace('', m.content * 999)", "|list", "|sort", "|map('upper')|list", "|select|list", "|batch(99999999)|list", "|string", "|format(1, 2)", "|indent(99999999)", "|unique|list", "|groupby('role')", "|items|list", "|first", "|trim", "[::-1]", "[-1]", "[999:]", ".split('')", ".replace('a', 'b' * 99999)", ".format(m)", "|selectattr('role', 'eq', 'user')|list", "|sum", "|slice(9999999)|list", "|default([n, n])"]

    def expression(depth=0):
        kind = draw.randrange(6 if depth < 4 else 2)
        if kind < 2:
            return draw.choice(atoms)
        if kind == 2:
            return expression(depth + 1) + draw.choice(filters)
        if kind == 3:
            return f"({expression(depth + 1)} {draw.choice(['+', '~', '*', '==', '<', 'in', 'and', 'or', '%', '-', '//', '**'])} {expression(depth + 1)})"
        if kind == 4:
            return f"[{expression(depth + 1)}, {expression(depth + 1)}]"
        return f"({expression(depth + 1)} if {expression(depth + 1)} else {expression(depth + 1)})"

    lines = ["{% set n = namespace(x='ab') %}{% for m in messages %}"]
    for _ in range(draw.randrange(1, 6)):
        kind = draw.randrange(6)
        if kind == 0:
            lines.append("{{ %s }}" % expression())
        elif kind == 1:
            lines.append("{%% set n.x = %s %%}" % expression())
        elif kind == 2:
            count = draw.choice([3, 40, 1000, 100_000])
            lines.append("{%% for i in range(%d) %%}{%% set n.x = %s %%}{%% endfor %%}" % (count, draw.choice(["n.x ~ n.x", "n.x + n.x", "[n.x, n.x]", "[n.x]", expression()])))
        elif kind == 3:
            lines.append("{%% macro f(a) %%}{{ f(%s) }}{%% endmacro %%}{{ f(%s) }}" % (expression(), expression()))
        elif kind == 4:
            lines.append("{%% if %s %%}{{ %s }}{%% endif %%}" % (expression(), expression()))
        else:
            lines.append("{{ " + draw.choice(["1" + "+1" * 20_000, "-" * 30_000 + "1", "not " * 9_000 + "1", "a" + "[0]" * 9_000, "(" * 9_000]) + " }}")
    lines.append("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    return "".join(lines).encode()


class Case:
    """One input in a folder of its own, and the words of the command line."""

    def __init__(self, draw, folder):
        self.draw, self.folder = draw, folder
        kinds = [self.picture] * 6 + [self.rows] * 4 + [self.table, self.archive, self.template, self.template, self.settings, self.settings, self.settings, self.weights, self.prompts, self.trace, self.recipe, self.flags, self.adapter]
        make = draw.choice(kinds)
        self.kind = make.__name__
        self.words = [str(word) for word in make()]

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def model(self, **others):
        """A folder of the tiny model in which some files are others."""
        folder = self.folder / "model"
        folder.mkdir()
        for name in MODEL_FILES:
            if name in others:
                (folder / name).write_bytes(others[name])
            else:
                (folder / name).symlink_to(MODEL / name)
        return folder

    def check(self, rows, model=MODEL):
        look = ["check", rows, "--base-model", model, "--threads", 2, "--batch-size", 1]
        shown = ["preview", rows, "--base-model", model, "--rows", 3]
        return look if self.draw.random() < 0.7 else shown

    def picture(self):
        files = sorted(path for path in (DATA / "recorded/pictures").iterdir() if ".decoded." not in path.name and ".resized." not in path.name)
        file = self.draw.choice(files)
        path = self.write("picture" + file.suffix, changed_bytes(self.draw, file.read_bytes()))
        return ["generate", "--model", MODEL, "--image", path, "--prompt", "a", "--max-new-tokens", 1, "--threads", 1]

    def rows(self):
        file = self.draw.choice(["chat.jsonl", "chat_older.jsonl", "chat_paths.jsonl", "questions.jsonl", "questions.json", "sharegpt.json", "tools.jsonl", "boxes.jsonl"])
        text = BOXES if file == "boxes.jsonl" else (DATA / "datasets" / file).read_text().replace('"pictures/', f'"{DATA}/datasets/pictures/')
        if self.draw.random() < 0.5:
            data = changed_bytes(self.draw, text.encode())
        elif file.endswith("l"):
            lines = [changed_json(self.draw, line) if self.draw.random() < 0.6 else line.encode() for line in text.splitlines() if line.strip()]
            data = b"\n".join(lines)
        else:
            data = changed_json(self.draw, text)
        more = ["--bbox-2d", "original"] if file == "boxes.jsonl" and self.draw.random() < 0.5 else []
        return self.check(self.write(file, data)) + more

    def table(self):
        file = self.draw.choice(sorted((DATA / "datasets/parquet").iterdir()) + [DATA / "datasets/tools.parquet", DATA / "datasets/tools-v2.parquet"])
        data = file.read_bytes()
        # What a table says about itself stands at its end.
        if self.draw.random() < 0.5:
            head, tail = data[: len(data) // 2], data[len(data) // 2 :]
            data = head + changed_bytes(self.draw, tail[::-1])[::-1]
        else:
            data = changed_bytes(self.draw, data)
        return self.check(self.write("rows.parquet", data))

    def archive(self):
        file = self.draw.choice(sorted((DATA / "datasets/shards").iterdir()))
        return self.check(self.write("rows.tar", changed_bytes(self.draw, file.read_bytes())))

    def template(self):
        data = template(self.draw)
        if self.draw.random() < 0.3:
            data = changed_bytes(self.draw, (MODEL / "chat_template.jinja").read_bytes())
        path = self.write("template.jinja", data)
        return self.check(DATA / "datasets/chat.jsonl") + ["--chat-template", path]

    def settings(self):
        name = self.draw.choice([name for name in MODEL_FILES if name.endswith(".json")])
        text = (MODEL / name).read_text()
        data = changed_json(self.draw, text) if self.draw.random() < 0.7 else changed_bytes(self.draw, text.encode())
        model = self.model(**{name: data})
        if self.draw.random() < 0.5:
            return self.check(DATA / "datasets/chat.jsonl", model)
        if self.draw.random() < 0.3:
            return ["plan", "--base-model", model, "--dataset", DATA / "datasets/chat.jsonl"]
        return ["generate", "--model", model, "--image", MODEL / "sign.png", "--prompt", "a", "--max-new-tokens", 2, "--threads", 1]

    def weights(self):
        model = self.model(**{"model.safetensors": changed_tensors(self.draw, (MODEL / "model.safetensors").read_bytes())})
        return ["generate", "--model", model, "--prompt", "a", "--max-new-tokens", 2, "--threads", 1]

    def prompts(self):
        line = json.dumps({"prompt": "a", "image": str(MODEL / "sign.png"), "images": [], "system": "b"})
        data = changed_json(self.draw, line) if self.draw.random() < 0.6 else changed_bytes(self.draw, line.encode())
        return ["generate", "--model", MODEL, "--prompts", self.write("prompts.jsonl", data), "--max-new-tokens", 1, "--threads", 1]

    def trace(self):
        files = sorted(path for path in (ROOT / "testdata/traces").iterdir() if path.is_file() and path.stat().st_size < 400_000)
        file = self.draw.choice(files)
        lines = file.read_bytes().split(b"\n")
        if file.suffix == ".jsonl" and self.draw.random() < 0.5:
            for _ in range(3):
                at = self.draw.randrange(len(lines))
                try:
                    lines[at] = changed_json(self.draw, lines[at])
                except ValueError:
                    pass
            data = b"\n".join(lines)
        else:
            data = changed_bytes(self.draw, file.read_bytes())
        return ["diagnose", self.write(file.name, data), "--format", self.draw.choice(["text", "json", "html", "markdown"])]

    def recipe(self):
        names = ["batch-size", "max-steps", "learning-rate", "lora-r", "lora-alpha", "lora-targets", "max-pixels", "min-pixels", "max-length", "prefetch", "threads", "loader-threads", "epochs", "seed", "eval-split", "warmup-ratio", "optim", "labels", "image-paths", "gradient-accumulation", "max-new-tokens", "batch-tokens", "modules-to-save", "vision-learning-rate", "metric-for-best-model", "bbox-2d"]
        lines = [f'base-model = "{MODEL}"', f'dataset = "{DATA}/datasets/chat.jsonl"', f'output-dir = "{self.folder}/out"']
        for name in self.draw.sample(names, self.draw.randrange(1, 4)):
            given = self.draw.choice([self.draw.choice(NUMBERS[:-1]), self.draw.choice(TEXTS[:6]), True, [1, "a"]])
            lines.append(f"{name} = {json.dumps(given)}")
        data = "\n".join(lines).encode("utf-8", "replace")
        path = self.write("recipe.toml", data if self.draw.random() < 0.8 else changed_bytes(self.draw, data))
        return ["train-vision", "--config", path, "--dry-run"]

    def flags(self):
        flag = self.draw.choice(["--threads", "--max-length", "--max-pixels", "--min-pixels", "--batch-size", "--gradient-accumulation", "--split", "--labels", "--image-paths", "--system-prompt"])
        given = str(self.draw.choice(NUMBERS + [text for text in TEXTS if "\0" not in text and "\ud800" not in text]))
        return ["check", DATA / "datasets/chat.jsonl", "--base-model", MODEL, f"{flag}={given}"]

    def adapter(self):
        folder = self.folder / "adapter"
        folder.mkdir()
        case = ROOT / "testdata/reference/recorded/bfloat16"
        config, tensors = [(case / "adapter" / name).read_bytes() for name in ["adapter_config.json", "adapter_model.safetensors"]]
        is_config = self.draw.random() < 0.5
        (folder / "adapter_config.json").write_bytes(changed_json(self.draw, config) if is_config else config)
        (folder / "adapter_model.safetensors").write_bytes(tensors if is_config else changed_tensors(self.draw, tensors))
        return ["generate", "--model", MODEL, "--adapter", folder, "--prompt", "a", "--max-new-tokens", 1, "--threads", 1]


def run(binary, words, folder):
    """Code, seconds, largest memory and what was said."""
    said = folder / "said.txt"
    with open(said, "wb") as out:
        child = subprocess.Popen([binary, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, start_new_session=True, env={**os.environ, "RUST_BACKTRACE": "0", "HF_HUB_CACHE": str(folder)})
    begin, usage = time.monotonic(), None
    while True:
        done, status, usage = os.wait4(child.pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() - begin > PATIENCE:
            os.killpg(child.pid, signal.SIGKILL)
            _, status, usage = os.wait4(child.pid, 0)
            break
        time.sleep(0.002)
    child.returncode = 0
    return os.waitstatus_to_exitcode(status), time.monotonic() - begin, usage.ru_maxrss * 1024, said.read_bytes().decode("utf-8", "replace")


def verdict(code, seconds, memory, said):
    if seconds > PATIENCE:
        return f"runs for more than {PATIENCE} s"
    if code not in CODES:
        return f"exit code {code}"
    if "panicked at" in said or "overflowed its stack" in said:
        return "panics"
    if memory > MOST_BYTES:
        return f"{memory / 1e9:.1f} GB of memory"
    if any(ord(letter) < 32 and letter not in "\n\t" or ord(letter) in (0x7F, 0x9B) for letter in said):
        return "writes what commands a terminal"
    return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--binary", default=str(ROOT / "target/debug/model-garden"))
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--kind", help="run cases of this kind alone: picture, rows, table, archive, template, settings, weights, prompts, trace, recipe, flags, adapter")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "mutate-kept")
    arguments = parser.parse_args()
    numbers = [arguments.only] if arguments.only is not None else range(arguments.start, arguments.start + arguments.count)
    print(f"seed {arguments.seed}, {len(numbers)} cases, {arguments.binary}", flush=True)
    counts, bad, slowest, largest = collections.Counter(), 0, (0, 0), (0, 0)
    for number in numbers:
        folder = Path(tempfile.mkdtemp(prefix="mutate-"))
        case = Case(random.Random(f"{arguments.seed}-{number}"), folder)
        if arguments.kind not in (None, case.kind):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        code, seconds, memory, said = run(arguments.binary, case.words, folder)
        counts[f"{case.kind} {code}"] += 1
        slowest, largest = max(slowest, (seconds, number)), max(largest, (memory, number))
        problem = verdict(code, seconds, memory, said)
        if problem:
            bad += 1
            kept = arguments.keep / f"{arguments.seed}-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept, symlinks=True)
            last = next((line for line in said.splitlines() if "panicked" in line or "error" in line), "")[:160]
            print(f"case {number} ({case.kind}): {problem}; {kept}; {' '.join(case.words)[:300]}; {last!r}", flush=True)
        if arguments.only is not None:
            print(" ".join(case.words), f"\ncode {code}, {seconds:.1f} s, {memory >> 20} MiB\n{said}")
        shutil.rmtree(folder, ignore_errors=True)
        if (number + 1) % 500 == 0:
            print(f"{number + 1} cases, {bad} bad, slowest {slowest[0]:.1f} s (case {slowest[1]}), largest {largest[0] >> 20} MiB (case {largest[1]})", flush=True)
    print(f"{len(numbers)} cases of seed {arguments.seed}: {bad} ended badly; slowest {slowest[0]:.1f} s (case {slowest[1]}), largest {largest[0] >> 20} MiB (case {largest[1]})")
    print("kind and exit code: " + ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
