"""The wheel: built, installed into a fresh environment, and used from there as a user would."""
import glob
import json
import os
import shutil
import subprocess
import sys
import unittest

import support
from support import FolderCase, PROGRAMS, REPOSITORY

BUILD_TIMEOUT_S = 1800
PIECES = """
class Collator:
    def __init__(self):
        self.kept = []

    def __call__(self, examples):
        self.kept.append(bytes([1]) * 100_000)


def pieces():
    return {"dataset": list(range(100)), "collator": Collator()}
"""


def wheel():
    """MODEL_GARDEN_WHEEL, or one that `make wheel` builds; raises SkipTest where it cannot be built."""
    named = os.environ.get("MODEL_GARDEN_WHEEL")
    if named:
        return named
    if os.environ.get("MODEL_GARDEN_TEST_WHEEL") != "1":
        raise unittest.SkipTest("building the wheel takes minutes: set MODEL_GARDEN_TEST_WHEEL=1, or MODEL_GARDEN_WHEEL to a built one")
    if not shutil.which("cargo") or not shutil.which("make"):
        raise unittest.SkipTest("cargo or make is missing: the wheel cannot be built")
    built = subprocess.run(
        ["make", "wheel", f"PYTHON={sys.executable}"], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BUILD_TIMEOUT_S
    )
    text = built.stdout.decode("utf-8", "replace")
    if built.returncode and "maturin" in text and ("No matching distribution" in text or "ConnectionError" in text):
        raise unittest.SkipTest("maturin cannot be installed: no network?")
    if built.returncode:
        raise AssertionError(text[-3000:])
    return max(glob.glob(os.path.join(REPOSITORY, "target", "wheels", "*.whl")), key=os.path.getmtime)


class Wheel(FolderCase):
    def run_clean(self, *words, code=0):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("MODEL_GARDEN_", "PYTHON"))}
        variables["PATH"] = "/usr/bin:/bin"
        done = subprocess.run(
            words, cwd=self.folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, universal_newlines=True
        )
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_a_fresh_environment_has_everything(self):
        package = wheel()
        environment = self.path("venv")
        self.run_clean(sys.executable, "-m", "venv", environment)
        python = os.path.join(environment, "bin", "python")
        self.run_clean(python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", package)
        listed = self.run_clean(python, "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check").stdout
        # What a new environment has by itself; pkg-resources is Debian 11's.
        usual = ("pip=", "setuptools=", "pkg-resources=", "pkg_resources=")
        self.assertEqual([line for line in listed.split() if not line.startswith(usual)], ["model-garden==" + listed.split("model-garden==")[1].split()[0]])

        script = os.path.join(environment, "bin", "model-garden")
        version = self.run_clean(script, "--version").stdout
        self.assertEqual(self.run_clean(python, "-m", "model_garden", "--version").stdout, version)
        found = self.run_clean(python, "-c", "import model_garden; print(model_garden.find_binary(), model_garden.__version__)").stdout
        self.assertEqual(found.split(), [script, version.split()[1]])

        loop = self.run_clean(python, "-X", "dev", "-W", "error", os.path.join(PROGRAMS, "watched_loop.py"), "60", "0.1", "1")
        self.assertIn("verdict leak", loop.stdout)
        # Long enough to be sure: a leak has to add 32 MiB after the first pass over the data, of 8 steps.
        trained = [os.path.join(PROGRAMS, "stand_in_trainer.py"), "--leak", "1", "--max_steps", "60", "--step_time", "0.08"]
        trained = self.run_clean(python, "-X", "dev", "-W", "error", *trained)
        self.assertIn("verdict leak", trained.stdout)
        words = [script, "run", "--memory-limit", "150MB", "--interval", "50ms", "-o", "trace.jsonl", "--", python]
        words += [os.path.join(PROGRAMS, "stand_in_trainer.py"), "--leak", "1", "--max_steps", "5000", "--output_dir", "out"]
        self.run_clean(*words, code=75)
        self.bisects(python, script)

    def bisects(self, python, script):
        """`bisect` from the command line, which finds the Python beside it, and from Python, which finds the binary."""
        with open(self.path("train.py"), "w") as file:
            file.write(PIECES)
        words = [script, "bisect", "train:pieces", "--passes", "3", "--format", "json", "--record", "record.json"]
        growth = json.loads(self.run_clean(*words, code=1).stdout)["growths"][0]
        self.assertEqual((growth["kind"], growth["keeper"], growth["held_at"]), ("leak", "collator", "collator.kept"))
        again = self.run_clean(script, "bisect", "record.json", "--format", "html", "-o", "page.html", code=1)
        self.assertEqual((again.stdout, again.stderr), ("", ""))
        by_name = "import model_garden; found = model_garden.bisect('train:pieces', passes=3, quiet=True); print(found.verdict, found.growth['keeper'])"
        self.assertEqual(self.run_clean(python, "-X", "dev", "-W", "error", "-c", by_name).stdout, "leak collator\n")
        by_value = "import train, model_garden; print(model_garden.bisect(train.pieces(), passes=3, report='other.html', quiet=True).growth['held_at'])"
        self.assertEqual(self.run_clean(python, "-X", "dev", "-W", "error", "-c", by_value).stdout, "collator.kept\n")
        for page in ("page.html", "other.html"):
            with open(self.path(page), encoding="utf-8") as file:
                self.assertTrue(file.read().startswith("<!doctype html>"))


if __name__ == "__main__":
    unittest.main()
