"""The docs are true: their shell blocks run (the fast ones; `make docs-test` runs all), links lead somewhere, reference pages are what the code says, and quoted messages exist."""
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import support

TOOLS = os.path.join(support.REPOSITORY, "docs", "tools")
sys.path.insert(0, TOOLS)
if support.binary():
    os.environ.setdefault("MODEL_GARDEN_BINARY", support.binary())

import blocks
import links
import reference

DOCS = Path(support.REPOSITORY) / "docs"


def report(*words):
    ran = subprocess.run([support.binary(), *words, "--format", "json"], cwd=support.REPOSITORY, env=support.environment(), capture_output=True, text=True)
    return json.loads(ran.stdout)


class Docs(unittest.TestCase):
    def test_links_lead_somewhere(self):
        self.assertEqual(links.broken(), [])

    def test_messages_of_the_troubleshooting_page_exist(self):
        sources = "".join(path.read_text() for path in Path(support.REPOSITORY).glob("crates/*/src/**/*.rs"))
        sources = re.sub(r"\\\n\s*", "", sources).replace('\\"', '"')
        quoted = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^### (.*)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)))
        self.assertGreaterEqual(len(quoted), 20)
        for message in quoted:
            for part in filter(None, (part.strip() for part in message.split("…"))):
                self.assertIn(part, sources, f"docs/troubleshooting.md quotes a message that no source has: {message}")

    def test_every_shell_block_is_run_or_says_why_not(self):
        found = [block for page in blocks.pages() for block in blocks.blocks(page)]
        self.assertGreater(len(found), 40)
        self.assertGreater(sum(not block.reason for block in found), 20)


@support.needs_binary
class DocsWithTheBinary(unittest.TestCase):
    def test_shell_blocks_run(self):
        ran, wrong = blocks.run_pages(blocks.pages(), fast=True)
        self.assertEqual(wrong, [])
        self.assertGreater(ran, 10)

    def test_reference_pages_are_current(self):
        self.assertEqual(reference.stale(), [], "run `make reference`")

    def test_json_fields_are_in_the_reference_and_in_the_contract(self):
        told = {path for path, _, _ in reference.Types(*reference.TYPED[0][2]).fields("Diagnosis")}
        found = {}
        facts = ["--examples", "663", "--batch-size", "2", "--gradient-accumulation", "4", "--memory-limit", "32GB"]
        for run in ("run1.csv", "run2.log"):
            reference.seen(report("diagnose", f"testdata/production/{run}", *facts, "--stable-after", "40", "--max-growth", "1GB"), "", found)
        self.assertEqual([path for path in found if path not in told and not path.startswith("memory")], [])
        contract = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", (DOCS / "json.md").read_text()))))
        self.assertEqual(sorted({path.split(".")[0].removesuffix("[]") for path in told} - contract), [])
        self.assertEqual(sorted({path.split(".")[-1].removesuffix("[]") for path in told} - contract), [])
        before, after = ("testdata/production/run1.csv", "testdata/production/run2.csv")
        compared, types = {}, reference.Types(*reference.TYPED[1][2])
        reference.seen(report("compare", before, after), "", compared)
        self.assertEqual([path for path in compared if path not in {path for path, _, _ in types.fields("Comparison")}], [])


if __name__ == "__main__":
    unittest.main()
