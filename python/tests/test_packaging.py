"""What a release has beside the wheel: the bill of materials, the archive with its checksums, and the unit for systemd."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import unittest

import support
from support import FolderCase, REPOSITORY

PACKAGING = os.path.join(REPOSITORY, "packaging")


class Packaging(FolderCase):
    def run_script(self, *words):
        done = subprocess.run([sys.executable, *words], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, universal_newlines=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    @unittest.skipUnless(shutil.which("cargo"), "cargo is missing: the bill of materials comes from it")
    def test_the_bill_of_materials_is_what_the_lock_file_pins(self):
        text = self.run_script(os.path.join(PACKAGING, "sbom.py"))
        self.assertNotIn(REPOSITORY, text)
        bill = json.loads(text)
        with open(os.path.join(REPOSITORY, "Cargo.lock"), encoding="utf-8") as file:
            locked = file.read()
        components = {each["name"]: each for each in bill["components"]}
        for each in bill["components"]:
            if each["name"] == "sqlite":
                continue
            self.assertIn(f'name = "{each["name"]}"\nversion = "{each["version"]}"\n', locked)
            # Our own crates come with the repository; everything else has a checksum.
            self.assertEqual("hashes" in each, not each["name"].startswith("garden-"), each)
            for checksum in each.get("hashes", []):
                self.assertIn(f'name = "{each["name"]}"\nversion = "{each["version"]}"\nsource', locked)
                self.assertIn(checksum["content"], locked)
        self.assertEqual(components["serde_derive"]["scope"], "excluded", "a macro is not in the binary")
        self.assertEqual(components["libsqlite3-sys"]["scope"], "required")
        self.assertRegex(components["sqlite"]["version"], r"^3\.\d+\.\d+$")
        self.assertNotIn("parquet", components, "needed by tests only")

        known = {each["bom-ref"] for each in [*bill["components"], bill["metadata"]["component"]]}
        self.assertEqual(len(known), len(bill["components"]) + 1)
        self.assertEqual({each["ref"] for each in bill["dependencies"]}, known)
        for each in bill["dependencies"]:
            self.assertLessEqual(set(each["dependsOn"]), known)

        try:
            from cyclonedx.schema import SchemaVersion
            from cyclonedx.validation.json import JsonStrictValidator
        except ImportError:
            self.skipTest("cyclonedx-python-lib[json-validation] is not installed: the bill is not compared with its schema")
        self.assertIsNone(JsonStrictValidator(SchemaVersion.V1_6).validate_str(text))

    @unittest.skipUnless(os.environ.get("MODEL_GARDEN_WHEEL"), "a release is packed from a wheel: set MODEL_GARDEN_WHEEL to a built one")
    @unittest.skipUnless(shutil.which("cargo"), "cargo is missing: the bill of materials comes from it")
    def test_a_release_is_complete_and_packed_the_same_again(self):
        wheel = os.environ["MODEL_GARDEN_WHEEL"]
        for folder in ("once", "twice"):
            self.run_script(os.path.join(PACKAGING, "dist.py"), wheel, "-o", self.path(folder))
        sums = {}
        for folder in ("once", "twice"):
            with open(os.path.join(self.path(folder), "SHA256SUMS")) as file:
                sums[folder] = file.read()
        self.assertEqual(sums["once"], sums["twice"])
        for line in sums["once"].splitlines():
            checksum, name = line.split("  ")
            with open(os.path.join(self.path("once"), name), "rb") as file:
                self.assertEqual(hashlib.sha256(file.read()).hexdigest(), checksum)
        names = sorted(os.listdir(self.path("once")))
        self.assertEqual(len(names), len(sums["once"].splitlines()) + 1)

        archive = next(name for name in names if name.endswith(".tar.gz"))
        folder = archive[: -len(".tar.gz")]
        with tarfile.open(os.path.join(self.path("once"), archive)) as tar:
            held = tar.getnames()
            self.assertTrue(all(name == folder or name.startswith(folder + "/") for name in held))
            for name in ("README.md", "LICENSE", "LICENSES-OF-DEPENDENCIES.txt", "CHANGELOG.md", "model-garden.service", "model-garden.sysusers", "docs/install.md"):
                self.assertIn(f"{folder}/{name}", held)
            tar.extract(f"{folder}/model-garden", self.folder)
        told = subprocess.run([os.path.join(self.path(folder), "model-garden"), "--version"], stdout=subprocess.PIPE, universal_newlines=True)
        self.assertEqual(told.stdout, f"model-garden {re.search('-([0-9.]+)-', archive).group(1)}\n")

    @support.needs_binary
    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is missing: the unit is not looked at")
    def test_systemd_has_no_complaint_about_the_unit(self):
        with open(os.path.join(PACKAGING, "model-garden.service"), encoding="utf-8") as file:
            text = file.read()
        unit = self.path("model-garden.service")
        installed = "/usr/local/bin/model-garden"
        self.assertIn(installed, text)
        with open(unit, "w", encoding="utf-8") as file:
            file.write(text.replace(installed, support.binary()))
        told = subprocess.run(["systemd-analyze", "verify", unit], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        complaints = [line for line in told.stdout.splitlines() if "model-garden" in line]
        self.assertEqual((complaints, told.returncode), ([], 0), told.stdout)


if __name__ == "__main__":
    unittest.main()
