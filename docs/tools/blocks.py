"""Runs the shell blocks of README.md and docs/*.md as somebody would paste them: page by page, each in a scratch folder that looks like a clone.

    python3 docs/tools/blocks.py                      # every block of every page: `make docs-test`
    python3 docs/tools/blocks.py --fast               # without blocks marked as slow: what `make check` runs
    python3 docs/tools/blocks.py --list docs/run.md   # what would be run, and what would not, and why

A shell block is fenced as `sh` or `console`, or indented and begins with a command. In a block with lines that begin with `$ ` those are the commands and the
rest is their output; of that, each verdict (a word in capitals at the start of a line) must come up when the commands run. Other words and figures vary.
Comments before a block change how it is treated:

    <!-- not run: why -->      it is not run
    <!-- slow: why -->         it runs, but not in the fast part; neither do blocks that need what it leaves behind, so mark those too
    <!-- exit 1: why -->       the exit code that it must end with, instead of 0
    <!-- needs: torch -->      it is skipped where Python lacks these packages

The blocks of a page share their folder, variables and working directory, as in one terminal. The binary is MODEL_GARDEN_BINARY, else that of the build.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900
LANGUAGES = {"sh", "console", "bash", "shell"}
# Pages of which nothing is run here.
ELSEWHERE = {"docs/install.md": "it changes the machine: packages, services, containers"}
COMMAND = re.compile(r"(\w+=\S+ )*(\$ |model-garden |make |python3? |pip |cargo |curl |export |cd |git |cat |docker |podman |systemctl |cp |mkdir |tensorboard )")
MARK = re.compile(r"<!-- (not run|tested|slow|exit \d+|needs): (.+?) -->")
VERDICT = re.compile(r"^([A-Z]{4,})  \S")


class Block:
    def __init__(self, page, line, lines, language, marks):
        self.page, self.line, self.marks = page, line, marks
        self.is_session = language == "console" or any(line.startswith("$ ") for line in lines)
        self.lines = lines

    @property
    def reason(self):
        """Why it is not run, or None."""
        return ELSEWHERE.get(str(self.page.relative_to(REPOSITORY))) or self.marks.get("not run") or self.marks.get("tested")

    @property
    def code(self):
        """The exit code to end with."""
        return next((int(mark.split()[1]) for mark in self.marks if mark.startswith("exit")), 0)

    def script(self):
        if not self.is_session:
            return "\n".join(self.lines)
        kept, goes_on = [], False
        for line in self.lines:
            if goes_on or line.startswith("$ "):
                kept.append(line if goes_on else line[2:])
                goes_on = line.endswith("\\")
        return "\n".join(kept)

    def verdicts(self):
        return [found[1] for line in self.lines if self.is_session and (found := VERDICT.match(line))]


def blocks(page):
    """The shell blocks of a page, in order."""
    found, marks, lines = [], {}, page.read_text().splitlines()
    number, before = 0, ""
    while number < len(lines):
        line = lines[number]
        start = number + 1
        if fence := re.match(r"(`{3,}|~{3,})\s*(\w*)", line):
            end = next(n for n in range(start, len(lines)) if lines[n].startswith(fence[1]))
            if fence[2] in LANGUAGES:
                found.append(Block(page, start, lines[start:end], fence[2], marks))
            number, marks, before = end + 1, {}, ""
        elif line.startswith("    ") and (not before.strip() or before.startswith(("#", "<!--"))):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            body = [line[4:] for line in lines[number:end]]
            if any(COMMAND.match(line) for line in body):
                found.append(Block(page, start, body, "", marks))
            number, marks, before = end, {}, ""
        else:
            if line.strip():
                marks = {**marks, **{mark[1]: mark[2] for mark in MARK.finditer(line)}} if line.startswith("<!--") else {}
            number, before = number + 1, line
    return found


def binary():
    named = os.environ.get("MODEL_GARDEN_BINARY")
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    for path in [named] if named else [target / "release/model-garden", target / "debug/model-garden"]:
        if os.access(path, os.X_OK):
            return Path(path).resolve()
    sys.exit("error: there is no binary to run\nhint: make build, or set MODEL_GARDEN_BINARY")


class Terminal:
    """A scratch folder that looks like a clone, with an empty home and the binary on the path."""

    def __init__(self, program):
        self.folder = Path(tempfile.mkdtemp(prefix="garden-docs-"))
        self.clone, home, path = self.folder / "clone", self.folder / "home", self.folder / "bin"
        for folder in (self.clone, home, path):
            folder.mkdir()
        for name in ("bench", "crates", "docs", "Makefile", "Cargo.toml"):
            (self.clone / name).symlink_to(REPOSITORY / name)
        # Blocks may leave files beside what they use.
        for name in ("testdata", "python"):
            shutil.copytree(REPOSITORY / name, self.clone / name, ignore=shutil.ignore_patterns("__pycache__", "reference"))
        (path / "model-garden").symlink_to(program)
        for name in ("python", "python3"):
            # Not a link: an environment's Python finds its packages by the place that it is started from.
            (path / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            (path / name).chmod(0o755)
        self.state = self.folder / "state"
        self.state.write_text("")
        self.variables = {
            "HOME": str(home),
            "PATH": f"{path}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "PYTHONPATH": str(REPOSITORY / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def paste(self, script):
        """Exit code and output of a script that begins where the one before it ended."""
        keep = f'trap \'{{ declare -px; printf "cd %q\\n" "$PWD"; }} > "{self.state}"\' EXIT\nset -e -o pipefail\n'
        whole = f'cd "{self.clone}"\n. "{self.state}"\n{keep}{script}\n'
        try:
            ran = subprocess.run(
                ["bash", "-c", whole], env=self.variables, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, text=True, errors="replace",
            )
            return ran.returncode, ran.stdout
        except subprocess.TimeoutExpired as late:
            return None, (late.stdout or b"").decode(errors="replace") + f"\nstill running after {TIMEOUT_S} s"


def has(packages):
    script = "\n".join(f"import {name}" for name in packages.replace(",", " ").split())
    return subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL).returncode == 0


def run(block, terminal, show):
    """What is wrong with the block, or None."""
    code, output = terminal.paste(block.script())
    if show:
        print(output)
    told = "\n".join(output.splitlines()[-30:])
    if code != block.code:
        return f"exit code {code} instead of {block.code}\n{told}"
    missing = [word for word in block.verdicts() if not re.search(rf"^(model-garden: )?{word}\b", output, re.MULTILINE)]
    return f"it shows {', '.join(missing)}, which did not come up\n{told}" if missing else None


def run_pages(pages, fast=False, show=False, log=print):
    """Runs the blocks of these pages; the number of those that ran, and what is wrong, as text."""
    program, wrong, ran = binary(), [], 0
    for page in pages:
        terminal = Terminal(program)
        for block in blocks(page):
            place = f"{page.relative_to(REPOSITORY)}:{block.line}"
            if block.reason or (fast and "slow" in block.marks):
                continue
            if "needs" in block.marks and not has(block.marks["needs"]):
                log(f"skipped: {place}: needs {block.marks['needs']}")
                continue
            begin = time.monotonic()
            problem = run(block, terminal, show)
            ran += 1
            log(f"{place}: {'failed' if problem else 'ok'}, {time.monotonic() - begin:.1f} s")
            if problem:
                wrong.append(f"{place}: {problem}")
                log(problem)
        shutil.rmtree(terminal.folder, ignore_errors=True)
    return ran, wrong


def pages():
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "python/README.md"]


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--fast", action="store_true", help="leave out blocks marked as slow")
    words.add_argument("--show", action="store_true", help="show what the blocks print, to paste it into the page")
    words.add_argument("--list", action="store_true", help="show the blocks and how they are treated")
    words.add_argument("pages", nargs="*", type=lambda name: Path(name).resolve(), help="only these pages")
    given = words.parse_args()
    chosen = given.pages or pages()
    if given.list:
        for block in (block for page in chosen for block in blocks(page)):
            how = f"not run: {block.reason}" if block.reason else ", ".join(f"{k}: {v}" for k, v in block.marks.items()) or "runs"
            print(f"{block.page.relative_to(REPOSITORY)}:{block.line}: {how}\n    " + "\n    ".join(block.script().splitlines()[:3]))
        return
    ran, wrong = run_pages(chosen, given.fast, given.show)
    not_run = sum(bool(block.reason) for page in chosen for block in blocks(page))
    print(f"{ran} blocks ran, {len(wrong)} failed, {not_run} are marked as not run")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
