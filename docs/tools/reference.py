"""Writes the pages of docs/reference from the code: every option and exit code as the binary tells them, every setting of a recipe, every field of JSON answers.

    python3 docs/tools/reference.py             # `make reference`
    python3 docs/tools/reference.py --check     # exits with 1 if the pages are not what it would write

Options, exit codes and defaults come from `--help` of the binary; what becomes of a setting on resuming, and its other names, from the table in recipe/fields.rs; fields of JSON
either from the types that are written (their doc comments are the meanings) or, where an answer is put together in place, from real answers to small questions.
"""
import json
import os
import re
import subprocess
import sys

from blocks import REPOSITORY, binary

NOTE = "<!-- Written by `make reference` from the code. Do not edit. -->\n"
ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent", "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}


def ask(*words, codes=(0,)):
    ran = subprocess.run([str(binary()), *words], cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    if ran.returncode not in codes:
        sys.exit(f"error: {' '.join(words)} ended with {ran.returncode}\n{ran.stderr}")
    return ran.stdout


def cell(text):
    """A text in a table: what looks like an option or a value between brackets must not become HTML."""
    text = re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
    return re.sub(r"<(?=[A-Za-z/])", "&lt;", text)


def code(text):
    return "`" + text.replace("|", "\\|") + "`"


# Commands and options


def commands():
    """Names of all commands that help lists, with the heading they are under."""
    found, heading = [], ""
    for line in ask("--help").splitlines():
        if line and not line.startswith(" ") and line.endswith(":"):
            heading = line[:-1]
        name = re.match(r"  ([a-z][a-z-]+)(?=  |$)", line)
        if name and name[1] != "help" and heading not in ("Examples", "Options"):
            found.append((heading, name[1]))
    return found


class Help:
    """The help of a command, taken apart."""

    def __init__(self, command):
        self.command, self.usage, self.about, self.sections, self.after = command, "", [], [], []
        lines = ask(command, "--help").splitlines()
        number = next(n for n, line in enumerate(lines) if line.startswith("Usage:"))
        self.about = "\n".join(lines[:number]).strip()
        self.usage = lines[number].removeprefix("Usage:").strip()
        number += 1
        while number < len(lines):
            line = lines[number]
            following = next((one for one in lines[number + 1 :] if one.strip()), "")
            is_list = re.match(r"(  |      )(-|<|\[)", following) and line.endswith(":") and not line.startswith(" ")
            if is_list:
                number = self.options(line[:-1], lines, number + 1)
            else:
                self.after.append(line)
                number += 1
        self.after = "\n".join(self.after).strip()

    def options(self, heading, lines, number):
        """Takes the options under a heading; the number of the line after them."""
        options = []
        while number < len(lines):
            line = lines[number]
            if line and not line.startswith("  "):
                break
            if re.match(r"(  |      )(-|<|\[)", line):
                spelled, _, short = line.strip().partition("   ")
                options.append([re.sub(r"\s{2,}.*", "", spelled), [short.strip()] if short.strip() else []])
            elif options:
                options[-1][1].append(line.strip())
            number += 1
        self.sections.append((heading, [(name, words(text)) for name, text in options]))
        return number


def words(lines):
    """The description of an option as one text; possible values become a list in it."""
    text = " ".join(line for line in lines if line)
    text = re.sub(r" - (\S+?): ", r"; \1: ", text).replace(" Possible values:;", ":")
    return text.strip()


def commands_page(helps):
    lines = ["# Every command and option", NOTE, "`model-garden COMMAND --help` prints the same. Exit codes: [exit-codes.md](exit-codes.md). Settings of training with their other names: [recipe.md](recipe.md).\n"]
    for command in helps:
        lines += [f"## {command.command}", "", cell(command.about.split("\n\n")[0]), "", "```text", command.usage, "```", ""]
        for paragraph in command.about.split("\n\n")[1:]:
            lines += [cell(paragraph), ""]
        for heading, options in command.sections:
            rows = [(name, text) for name, text in options if not re.search(r"--(help|version)\b", name)]
            if rows:
                lines += [f"| {heading[0].lower() + heading[1:]} | |", "| --- | --- |", *(f"| {code(name)} | {cell(text)} |" for name, text in rows), ""]
        if examples := re.search(r"^Examples:\n(.*)", command.after, re.MULTILINE | re.DOTALL):
            lines += ["Examples, as the help has them:", "", "```text", *(line.removeprefix("  ") for line in examples[1].splitlines()), "```", ""]
    return "\n".join(lines)


def exit_codes_page(helps):
    lines = [
        "# Exit codes", NOTE,
        "| code | meaning everywhere |", "| --- | --- |",
        "| 0 | fine |", "| 1 | the answer is bad news: a leak, a limit in reach, bad rows, a plan that does not fit, a failed assertion |",
        "| 2 | the program could not do it: unreadable input, wrong arguments, a full disk |", "| 3 | too little data |", "",
        "What each command's help says beyond that:", "",
    ]
    for command in helps:
        if found := re.search(r"^[^\n]*exit codes:.*?(?=\n\n|\Z)", command.after, re.MULTILINE | re.DOTALL | re.IGNORECASE):
            lines += [f"## {command.command}", "", "```text", re.sub(r"\n  ", "\n", found[0]).removeprefix("Exit codes:").strip(), "```", ""]
    return "\n".join(lines)


# The recipe


def recipe_page(helps):
    source = (REPOSITORY / "crates/garden-train/src/recipe/fields.rs").read_text()
    table = source[source.index("pub const FIELDS") :]
    pattern = r'field\(\s*(\w+),\s*"([^"]*)",\s*"([^"]*)",\s*&\[(.*?)\],\s*"((?:[^"\\]|\\.)*)",?\s*\)((?:\s*\.\w+\(\))*)'
    fields = re.findall(pattern, table, re.DOTALL)
    if len(fields) != len(re.findall(r"\bfield\(", table)):
        sys.exit("error: recipe/fields.rs is written in a way that docs/tools/reference.py does not read")
    headings = dict(re.findall(r'const (\w+): &str = "([^"]*)";', source))
    train = next(command for command in helps if command.command == "train-vision")
    told = {re.search(r"--([\w-]+)", name)[1]: text for _, options in train.sections for name, text in options if "--" in name}
    lines = [
        "# Every setting of a recipe", NOTE,
        "Each is a flag of `train-vision` and a key of a recipe file (`--config run.toml`), with `-` or `_`; flags win. [train.md](../train.md) explains them in context.",
        "*On resuming* says what becomes of a change when a run goes on from a checkpoint: *fixed*, it is refused; *told*, it counts from there on and is reported; *free*, it may be anything.", "",
    ]
    heading = None
    for section, name, value, aliases, text, more in fields:
        if section != heading:
            heading = section
            lines += ["", f"## {headings[section]}", "", "| setting | value | meaning | other names | on resuming |", "| --- | --- | --- | --- | --- |"]
        meaning = re.sub(r"\s*\[alias(es)?: [^\]]*\]", "", told.get(name, text))
        other = ", ".join(code(alias) for alias in re.findall(r'"([^"]*)"', aliases))
        resume = "fixed" if ".fixed()" in more else "free" if ".free()" in more else "told"
        lines.append(f"| {code(name)} | {code(value) if value else 'a switch'} | {cell(meaning)} | {other} | {resume} |")
    return "\n".join(lines) + "\n"


# JSON


class Types:
    """Structs that are written as JSON, as the source of some crates has them."""

    def __init__(self, *places):
        self.structs, self.enums = {}, {}
        for place in places:
            source = re.sub(r"#\[cfg\(test\)\].*", "", (REPOSITORY / "crates" / place).read_text(), flags=re.DOTALL)
            for name, body in re.findall(r"^pub(?:\(crate\))? struct (\w+)(?:<[^>]*>)? \{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL):
                self.structs[name] = [
                    (field, kind.strip(), " ".join(re.findall(r"/// ?(.*)", before)), before)
                    for before, field, kind in re.findall(r"((?:^    (?:///.*|#\[.*)\n)*)^    (?:pub(?:\(crate\))? )?(\w+): (.*?),?\n", body, re.MULTILINE)
                ]
            for name, body in re.findall(r"^pub enum (\w+) \{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL):
                self.enums[name] = [snake(variant) for variant in re.findall(r"^    (\w+)", body, re.MULTILINE)]

    def fields(self, root, path=""):
        """(path, type, meaning) of every field below a struct."""
        for name, kind, meaning, before in self.structs[root]:
            attributes = " ".join(re.findall(r"#\[serde\((.*)\)\]", before))
            if re.search(r"\bskip(_serializing)?\b", attributes):
                continue
            if renamed := re.search(r'rename = "(\w+)"', attributes):
                name = renamed[1]
            inner = re.sub(r"&'?\w* ?", "", kind)
            optional = inner.startswith("Option<") or "skip_serializing_if" in attributes
            many = "Vec<" in inner or inner.startswith("[") or "Option<Vec<" in inner
            inner = re.findall(r"\w+", inner)[-1]
            if "flatten" in attributes:
                yield from self.fields(inner, path)
                continue
            here = path + name.removeprefix("r#")
            shown = ("list of " if many else "") + self.kind(inner) + ("s" if many and inner in self.structs else "") + (" or null" if optional else "")
            yield here, shown, meaning
            if inner in self.structs:
                yield from self.fields(inner, here + ("[]." if many else "."))

    def kind(self, name):
        if name in self.structs:
            return "object"
        if name in self.enums:
            return "one of " + ", ".join(code(value) for value in self.enums[name])
        return {"String": "text", "str": "text", "bool": "true or false", "f64": "number", "f32": "number"}.get(name, "whole number" if re.fullmatch(r"[ui](8|16|32|64|size)|Bytes", name) else "text")


def snake(name):
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


MEMORY = ["garden-memory/src/diagnosis.rs", "garden-memory/src/series.rs"]
COMPARED = ["garden-memory/src/comparison.rs", *MEMORY]
# (title, where the contract is told, files, root, a field that is added to the root)
TYPED = [
    ("diagnose, monitor --report FILE.json", "json.md", [*MEMORY, "garden-report/src/lib.rs"], "Diagnosis", ("memory", "StartAndEnd", "Memory at the start and at the end")),
    ("compare", "compare.md", COMPARED, "Comparison", None),
    ("bisect", "bisect.md", ["garden-bisect/src/finding.rs"], "Finding", None),
]
TINY = "testdata/tiny-model"
ROWS = "testdata/data/datasets/questions.jsonl"
PLAN = ["plan", "--shape", "qwen2.5-vl-7b", "--image", "1280x720", "--recompute", "none", "--threads", "2", "--format", "json"]
# (title, where it is told, questions with the exit codes that are answers)
ASKED = [
    ("check", "check.md", [(["check", ROWS, "--base-model", TINY, "--format", "json"], (0, 1))]),
    ("plan", "plan.md", [([*PLAN, "--memory-limit", "16GB", "--device", "cpu"], (1,)), ([*PLAN, "--memory-limit", "64GB", "--vram", "80GB"], (0,))]),
    ("preview --json", "check.md", [(["preview", ROWS, "--base-model", TINY, "--json"], (0,))]),
    ("generate --json", "generate.md", [(["generate", "--model", TINY, "--prompt", "Hello", "--max-new-tokens", "2", "--threads", "1", "--device", "cpu", "--json"], (0,))]),
    ("bench --json", "benchmarks.md", [(["bench", "--shape", "tiny", "--steps", "2", "--device", "cpu", "--threads", "2", "--json"], (0,))]),
    ("devices --json", "gpu.md", [(["devices", "--json"], (0,))]),
]


def seen(value, path, found):
    """Adds the fields of an answer, with the types of their values."""
    if isinstance(value, dict):
        for name, inner in value.items():
            here = f"{path}{name}"
            found.setdefault(here, []).append(inner)
            seen(inner, here + ("[]." if isinstance(inner, list) else "."), found)
    elif isinstance(value, list):
        for inner in value:
            seen(inner, path, found)


def kind_seen(values):
    names = {bool: "true or false", str: "text", dict: "object", list: "list", type(None): "null"}
    # A whole number may be 2.0 elsewhere, so numbers are not told apart.
    found = sorted({names.get(type(value), "number") for value in values}, key=lambda name: (name == "null", name))
    return " or ".join(found)


def json_page():
    lines = [
        "# Every JSON field", NOTE,
        "Unknown values are `null`, never 0; amounts are in bytes unless a name says otherwise. Fields may be added. `[]` stands for each entry of a list.", "",
    ]
    for title, page, files, root, added in TYPED:
        types = Types(*files)
        fields = list(types.fields(root))
        if added:
            fields += [(added[0], "object or null", added[2])] + [(f"{added[0]}.{name}", kind, meaning) for name, kind, meaning in types.fields(added[1])]
        lines += [f"## {title}", "", f"What it means: [{page}](../{page}).", "", "| field | type | meaning |", "| --- | --- | --- |"]
        # The comments in the code are about Rust's types.
        lines += [f"| {code(path)} | {kind} | {cell(meaning).replace('`None`', '`null`')} |" for path, kind, meaning in fields]
        lines.append("")
    for title, page, questions in ASKED:
        found = {}
        for question, codes in questions:
            seen(json.loads(ask(*question, codes=codes)), "", found)
        lines += [f"## {title}", "", f"What it means: [{page}](../{page}). As found in real answers:", "", "| field | type |", "| --- | --- |"]
        lines += [f"| {code(path)} | {kind_seen(values)} |" for path, values in found.items()]
        lines.append("")
    return "\n".join(lines)


def pages():
    helps = [Help(name) for _, name in commands()]
    made = {"commands.md": commands_page(helps), "exit-codes.md": exit_codes_page(helps), "recipe.md": recipe_page(helps), "json.md": json_page()}
    return {name: text.rstrip("\n") + "\n" for name, text in made.items()}


def stale(folder=REPOSITORY / "docs/reference"):
    """Names of pages that are not what the code says."""
    return [name for name, text in pages().items() if not (folder / name).exists() or (folder / name).read_text() != text]


if __name__ == "__main__":
    if "--check" in sys.argv:
        if old := stale():
            sys.exit(f"docs/reference is not what the code says: {', '.join(old)}\nhint: make reference")
    else:
        folder = REPOSITORY / "docs/reference"
        folder.mkdir(exist_ok=True)
        for name, text in pages().items():
            (folder / name).write_text(text)
            print(f"wrote docs/reference/{name}")
