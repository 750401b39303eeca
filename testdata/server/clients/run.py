"""Runs the official clients of OpenAI's API, and LiteLLM, against `model-garden serve`, each in an environment of its own.

`make serve-clients` runs it. It installs the newest client of each series below `--work`, gives each one a new server with the tiny model of testdata/, and has
it do what its users do (`with_openai.py`, `with_litellm.py`, `with_openai.mjs`). `rows.py` sends rows of OpenAI's guides. What cannot be installed is skipped and
named. Nothing but the package registries and 127.0.0.1 is contacted.
"""

import argparse
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KEY = "the-key-of-this-test"
PATIENCE = 300

# What is installed, by major series, and what is run with it.
CLIENTS = {
    "openai-2": (["openai>=1,<3"], "with_openai.py"),
    "openai-3": (["openai>=3,<4"], "with_openai.py"),
    "litellm": (["litellm>=1,<2"], "with_litellm.py"),
    # It needs Node 22, and TypeScript compares the answers with its types.
    "openai-node-7": (["openai@7", "node@22", "typescript@7"], "with_openai.mjs"),
    "rows": ([], "rows.py"),
}


def install(name, packages, folder):
    """The program that runs scripts with these packages; None, and a word about it, if they cannot be had."""
    if not packages:
        return Path(sys.executable)
    if name.startswith("openai-node"):
        program = folder / "node_modules/.bin/node"
        orders = [["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error", "--fetch-retries=1", *packages]]
    else:
        program = folder / "bin/python"
        orders = [] if program.exists() else [[sys.executable, "-m", "venv", folder]]
        orders += [[program, "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check", "--retries=1", "--timeout=20", *packages]]
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / "installed.txt"
    try:
        for order in [*orders, [program, "--version"]]:
            subprocess.run(order, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        marker.write_text("\n".join(packages))
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stdout", None) or str(error)).strip().splitlines()
        told = next((line for line in lines if line.lower().startswith(("error", "npm error"))), lines[-1])
        if not marker.exists() or marker.read_text() != "\n".join(packages):
            print(f"skipped: {name}: {', '.join(packages)} could not be installed: {told}")
            return None
        print(f"{name}: there may be newer packages than those of this run: {told}")
    return program


def surroundings(server, data):
    """The environment of a script: nobody's keys for other servers, and no way to them."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(("OPENAI_", "AZURE_", "LITELLM_")) and not name.upper().endswith("_PROXY")}
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return {**kept, **nowhere, "GARDEN_ADDRESS": server.address, "GARDEN_KEY": KEY, "GARDEN_ROWS": str(data)}


def rows(count):
    """Rows in OpenAI's form for vision."""
    path = min((ROOT / "testdata/data/recorded/pictures").glob("*.png"), key=lambda path: path.stat().st_size)
    url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    for number in range(count):
        question = [{"type": "text", "text": f"Which number is {number}?"}, {"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": f"number {number % 3}"}]
        yield json.dumps({"messages": messages}) + "\n"


class Server:
    """A server in a folder of its own, which ends with its jobs."""

    def __init__(self, binary, folder):
        shutil.rmtree(folder, ignore_errors=True)
        models = folder / "models"
        models.mkdir(parents=True)
        (models / "tiny-model").symlink_to(ROOT / "testdata/tiny-model")
        # The same with a chat template that writes tools, which Qwen2.5-VL's does not.
        shutil.copytree(ROOT / "testdata/tiny-model", models / "tiny-tools")
        shutil.copy(ROOT / "testdata/data/recorded/templates/qwen3_vl.jinja", models / "tiny-tools/chat_template.jinja")
        words = [str(binary), "serve", "--port", "0", "--device", "cpu", "--data-dir", str(folder / "data"), "--models", str(models)]
        words += ["--alias", "gpt-4o-2024-08-06=tiny-model", "--rate-limit", "1000000"]
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "MODEL_GARDEN_API_KEYS": KEY})
        deadline = time.monotonic() + 60
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"error: the server did not start:\n{self.log.read_text()}")
            time.sleep(0.05)
        self.address = found[0]

    def ask(self, method, path):
        request = urllib.request.Request(self.address + path, headers={"Authorization": f"Bearer {KEY}"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def end(self):
        """Ends the server and all of its jobs; what is wrong with how it ended."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            left = [job["id"] for job in self.ask("GET", "/v1/fine_tuning/jobs?limit=100")["data"] if job["finished_at"] is None]
            if not left:
                break
            for job in left:
                # One may have ended by itself meanwhile.
                with contextlib.suppress(urllib.error.HTTPError):
                    self.ask("POST", f"/v1/fine_tuning/jobs/{job}/cancel")
            time.sleep(0.3)
        self.process.terminate()
        code = self.process.wait(60)
        if "panicked" in self.log.read_text():
            return "the server panicked"
        return f"the server ended with {code}" if code else None


def run(name, binary, work):
    """What a client's script told: its version, and the result of each operation. None if it was skipped."""
    packages, script = CLIENTS[name]
    program = install(name, packages, work / name)
    if program is None:
        return None
    # Node looks for packages beside the script.
    path = shutil.copy(HERE / script, work / name) if script.endswith(".mjs") else HERE / script
    server = Server(binary, work / "servers" / name)
    data = work / "servers" / name / "rows.jsonl"
    data.write_text("".join(rows(12)))
    told, code, wrong = "", 0, None
    try:
        done = subprocess.run([str(program), str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, env=surroundings(server, data))
        told, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        told, wrong = (late.stdout or b"").decode(), f"the script did not end within {PATIENCE} s"
    finally:
        wrong = server.end() or wrong
    print(f"== {name}\n{told}", end="")
    found = {}
    for line in told.splitlines():
        word, _, rest = line.partition(": ")
        if word in ("ok", "failed"):
            found[rest.split(": ")[0]] = word
    if code and "failed" not in found.values():
        wrong = wrong or f"the script ended with {code}"
    if wrong:
        found["the run"] = "failed"
        print(f"failed: the run: {wrong}; see {server.log}")
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("clients", nargs="*", default=list(CLIENTS), help=", ".join(CLIENTS))
    chosen = options.parse_args()
    results = {name: run(name, chosen.binary.resolve(), chosen.work.resolve()) for name in chosen.clients}
    ran = {name: found for name, found in results.items() if found is not None and name != "rows"}
    operations = list(dict.fromkeys(operation for found in ran.values() for operation in found))
    print("\n" + " | ".join(["operation".ljust(32), *ran]) if ran else "")
    for operation in operations:
        print(" | ".join([operation.ljust(32), *(found.get(operation, "-").ljust(len(name)) for name, found in ran.items())]))
    failed = [f"{name}: {operation}" for name, found in results.items() for operation, word in (found or {}).items() if word == "failed"]
    if failed:
        sys.exit("\nfailed: " + "; ".join(failed))
    skipped = [name for name, found in results.items() if found is None]
    print("\nall of those that ran work" + (f"; not run: {', '.join(skipped)}" if skipped else ""))


if __name__ == "__main__":
    main()
