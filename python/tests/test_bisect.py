"""`bisect` on pipelines whose cause is known, with sizes, counts and places that are drawn at random.

GARDEN_SEED makes other draws, MODEL_GARDEN_TEST_DRAWS makes more of them, and `python -m unittest test_bisect.Families.test_flat` runs one family.
"""
import importlib.util
import json
import os
import random
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

import support
from support import PROGRAMS, SEED, needs_binary

sys.path.insert(0, PROGRAMS)
import pipelines

DRAWS = int(os.environ.get("MODEL_GARDEN_TEST_DRAWS", 3))
NEEDED = {"opened_images": "PIL", "opened_files": "PIL", "lazy_images": "PIL", "kept_arrays": "numpy"}
AT_ONCE = 2
TIMEOUT_S = 300
# Bytes per example: a twentieth; a page, as memory comes in pages; and what the C library or Python may have had free before a pass or after it.
TOLERANCE = 0.05
PAGE = 4096
FREE_IN_A_PASS = 128 << 10
# What a bounded cache holds is divided by where it was full, which is seen to a batch.
TOLERANCE_FULL = 0.15


def is_missing(module):
    return importlib.util.find_spec(module) is None


def bisected(family, seed):
    """What the command says about one draw, as its JSON."""
    case = pipelines.case(family, seed)
    # Here the pieces only say what is expected.
    for image in case.pieces["dataset"] if family == "opened_files" else ():
        image.close()
    words = [support.binary(), "bisect", f"pipelines:{family}", "--format", "json", "--python", sys.executable]
    words += ["--examples", str(case.examples), "--time", "1s"]
    # As few passes as there may be, some, and as many as the time allows.
    passes = random.Random(seed).choice([2, 3, 4, None])
    words += ["--passes", str(max(passes, case.least_passes))] if passes else []
    variables = support.environment(MODEL_GARDEN_DRAW=seed)
    variables["PYTHONPATH"] += os.pathsep + PROGRAMS
    done = subprocess.run(words, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S, universal_newlines=True)
    if done.returncode not in (0, 1, 3):
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return case, json.loads(done.stdout), done.returncode


def complaints(case, finding, code):
    """What is wrong with what was said, as text; nothing if all is right."""
    growth = finding["growths"][0] if finding["growths"] else {}
    told = {"verdict": finding["verdict"], **{name: growth.get(name) for name in ("cause", "keeper", "begins_with")}}
    wrong = [f"{name}: {told[name]} instead of {wanted}" for name, wanted in case.expected.items() if wanted is not None and told[name] != wanted]
    if case.bytes_per_example:
        share = TOLERANCE_FULL if told["verdict"] == "full_cache" else TOLERANCE
        difference = (growth.get("bytes_per_example") or 0) - case.bytes_per_example
        if abs(difference) > share * case.bytes_per_example + PAGE + FREE_IN_A_PASS / finding["examples"]:
            wrong.append(f"bytes per example: {growth.get('bytes_per_example')} instead of {case.bytes_per_example:.0f}")
    if case.names and case.names not in (growth.get("held_at") or ""):
        wrong.append(f"held at: {growth.get('held_at')} instead of something with {case.names}")
    if case.at_most and growth and (growth["holds_at_most"], growth["full_dataset_bytes"]) != (case.at_most, case.at_most * growth["bytes_per_example"]):
        wrong.append(f"holds at most: {growth['holds_at_most']} ({growth['full_dataset_bytes']} bytes) instead of {case.at_most}")
    if case.expected["verdict"] == "flat" and finding["growths"]:
        wrong.append(f"flat, and yet {growth['kind']}")
    if code != (1 if case.expected["verdict"] == "leak" else 0):
        wrong.append(f"exit code {code}")
    return wrong


@needs_binary
class Families(unittest.TestCase):
    """Each family is named rightly, whatever was drawn."""

    def check(self, family):
        needed = NEEDED.get(family)
        if needed and is_missing(needed):
            self.skipTest(f"{needed} is not installed: `make python` installs it into an environment of its own")
        seeds = [f"{SEED}-{number}" for number in range(DRAWS)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(pool.map(lambda seed: bisected(family, seed), seeds))
        failed = []
        for seed, (case, finding, code) in zip(seeds, results):
            wrong = complaints(case, finding, code)
            if wrong:
                failed.append(f"MODEL_GARDEN_DRAW={seed} ({case.examples} examples, batches of {case.pieces['batch_size']}): {'; '.join(wrong)}\n    {finding['summary']}")
        if failed:
            self.fail(f"{len(failed)} of {DRAWS} draws of {family}; GARDEN_SEED={SEED} repeats them\n  " + "\n  ".join(failed))


def _add(family):
    def test(self):
        self.check(family)

    test.__doc__ = pipelines.FAMILIES[family].__doc__
    setattr(Families, f"test_{family}", test)


for _family in pipelines.FAMILIES:
    _add(_family)


if __name__ == "__main__":
    unittest.main()
