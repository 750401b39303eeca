"""The package as a whole: light to import, written for Python 3.9, and it finds its binary."""
import ast
import glob
import os
import subprocess
import sys
import unittest
import unittest.mock

from support import FolderCase, PACKAGE_FOLDER, needs_binary, run_program, strict_python

import model_garden


class Import(unittest.TestCase):
    def test_nothing_heavy_is_imported_and_it_is_fast(self):
        script = (
            "import sys, time; begin = time.process_time(); import model_garden; took = time.process_time() - begin\n"
            "heavy = {'torch', 'transformers', 'numpy', 'PIL', 'psutil', 'json', 'socket', 'subprocess', 'logging', 'asyncio'}\n"
            "print(took, sorted(heavy & set(sys.modules)))"
        )
        fastest, loaded = None, None
        for _ in range(5):
            # Isolated, so that what a test runner or a startup file imports is not taken for ours.
            words = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {PACKAGE_FOLDER!r})\n" + script]
            took, loaded = subprocess.check_output(words, universal_newlines=True).split(" ", 1)
            fastest = min(float(took), fastest or 1e9)
        self.assertEqual(loaded.strip(), "[]")
        self.assertLess(fastest, 0.05, "seconds of processor time for `import model_garden`")

    def test_the_names_are_there_and_a_module_does_not_take_the_place_of_a_function(self):
        script = (
            "import model_garden.watch, model_garden.callback, model_garden\n"
            "assert callable(model_garden.watch), model_garden.watch\n"
            "assert set(model_garden.__all__) <= set(dir(model_garden))\n"
            "for name in model_garden.__all__ + ['__version__']: getattr(model_garden, name)\n"
            "try: model_garden.nonsense\n"
            "except AttributeError as error: print(error)"
        )
        done = run_program(strict_python("-c", script))
        self.assertEqual((done.stdout, done.stderr), ("module 'model_garden' has no attribute 'nonsense'\n", ""))

    def test_every_file_is_python_3_9(self):
        files = glob.glob(os.path.join(PACKAGE_FOLDER, "model_garden", "**", "*.py"), recursive=True)
        self.assertGreater(len(files), 8)
        for path in files:
            with open(path, encoding="utf-8") as file:
                ast.parse(file.read(), path, feature_version=(3, 9))


class Binary(FolderCase):
    def explain(self, **more):
        script = (
            "import model_garden\n"
            "try: print(model_garden.find_binary())\n"
            "except FileNotFoundError as error: print(type(error).__name__ + ':', error)"
        )
        more = {"MODEL_GARDEN_BINARY": None, "PATH": self.folder, **more}
        return run_program(strict_python("-c", script), **more).stdout

    def test_it_is_found_on_the_path_and_by_the_variable(self):
        program = self.path("model-garden")
        with open(program, "w") as file:
            file.write("#!/bin/sh\necho found\n")
        os.chmod(program, 0o755)
        if not self.explain(PATH="/nowhere").startswith("BinaryNotFound"):
            self.skipTest("this environment has the binary installed, which comes first")
        self.assertEqual(self.explain().strip(), program)
        self.assertEqual(self.explain(PATH="/nowhere", MODEL_GARDEN_BINARY=program).strip(), program)

    def test_a_missing_one_is_explained(self):
        text = self.explain()
        if not text.startswith("BinaryNotFound"):
            self.skipTest("this environment has the binary installed")
        self.assertIn("the `model-garden` binary was not found; looked in ", text)
        self.assertIn("hint: `pip install model-garden`, or build it with `make build` and set MODEL_GARDEN_BINARY", text)

    def test_systems_without_proc_are_told_so(self):
        for platform, name in (("win32", "Windows"), ("darwin", "macOS")):
            # Only our own answer: the standard library would look for another system's files.
            with unittest.mock.patch.object(sys, "platform", platform):
                text = model_garden.binary._explanation([])
            self.assertIn(f"is not available for {name}: it reads memory from Linux's /proc\nhint: train in WSL 2", text)

    def test_a_variable_that_names_nothing_is_an_error_of_its_own(self):
        text = self.explain(MODEL_GARDEN_BINARY="/nowhere/model-garden")
        self.assertEqual(
            text,
            "BinaryNotFound: MODEL_GARDEN_BINARY names `/nowhere/model-garden`, which is not a program\n"
            "hint: fix it, or unset it to use the installed one\n",
        )

    @needs_binary
    def test_python_dash_m_is_the_binary(self):
        done = run_program(strict_python("-m", "model_garden", "--version"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^model-garden \d+\.\d+\.\d+")
        wrong = run_program(strict_python("-m", "model_garden", "nonsense"))
        self.assertEqual(wrong.returncode, 2)

    def test_python_dash_m_without_a_binary_says_so(self):
        done = run_program(strict_python("-m", "model_garden"), MODEL_GARDEN_BINARY="/nowhere")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("error: MODEL_GARDEN_BINARY names `/nowhere`", done.stderr)


if __name__ == "__main__":
    unittest.main()
