"""`model_garden.audit` on real loops in real processes: what it says, what it refuses, and that it leaves nothing behind."""
import os
import random
import signal
import subprocess
import sys
import unittest
import unittest.mock

from support import PROGRAMS, SEED, FolderCase, binary, environment, needs_binary, run_program, wait_until

import model_garden
from model_garden import AuditError, Workaround

KIB = 1 << 10


class AuditCase(FolderCase):
    def setUp(self):
        super().setUp()
        sys.path.insert(0, PROGRAMS)
        self.addCleanup(sys.path.remove, PROGRAMS)
        patched = unittest.mock.patch.dict(os.environ, {"MODEL_GARDEN_BINARY": binary() or "none"})
        patched.start()
        self.addCleanup(patched.stop)
        self.random = random.Random(f"{SEED} {self.id()}")

    def audit(self, loop, workarounds, **more):
        return model_garden.audit(loop, workarounds, **{"steps": 30, "rounds": 3, "quiet": True, **more})

    def effects(self, audit):
        return {one["name"]: one["effect"] for one in audit.data["workarounds"]}

    def size(self):
        """A random size of whole KiB that no other part of Python allocates, well above an arena's share of a step."""
        return self.random.randrange(300, 3000) * KIB

    def refused(self, loop, workarounds, **more):
        with self.assertRaises(AuditError) as caught:
            self.audit(loop, workarounds, **more)
        return str(caught.exception)


@needs_binary
class Verdicts(AuditCase):
    def test_gc_does_nothing_for_a_real_leak_and_a_fresh_process_ends_it(self):
        size = self.size()
        with self.subTest(seed=SEED, size=size):
            audit = self.audit("audited:leak", ["gc.collect", "gc.collect/10", "malloc_trim", "subprocess/5"], settings={"size": size})
            self.assertEqual(
                self.effects(audit),
                {"gc.collect every step": "none", "gc.collect every 10 steps": "none", "malloc_trim every step": "none", "a fresh process every 5 steps": "ends"},
                audit,
            )
            growth = audit.data["workarounds"][0]["growth"]["before"]
            # An array of whole pages gets one more for its header.
            self.assertAlmostEqual(growth["value"] / size, 1.0, delta=0.05)
            self.assertTrue(audit.text.startswith("HELPS  a fresh process every 5 steps ends the growth"), audit)

    def test_a_collection_ends_growth_that_is_garbage(self):
        size = self.size()
        with self.subTest(seed=SEED, size=size):
            audit = self.audit("audited:cycles", ["gc.collect"], settings={"size": size})
            self.assertEqual(self.effects(audit), {"gc.collect every step": "ends"}, audit)

    def test_a_collection_of_many_live_objects_costs_time_for_nothing(self):
        objects = self.random.randrange(150_000, 300_000)
        with self.subTest(seed=SEED, objects=objects):
            audit = self.audit("audited:many_objects", ["gc.collect"], settings={"objects": objects})
            one = audit.data["workarounds"][0]
            self.assertEqual((one["effect"], one["step_time"]["effect"], one["advice"]), ("none", "costs", "remove it"), audit)
            self.assertGreater(one["step_time"]["ratio"]["low"], 1.2, audit)
            self.assertIn(f"gc.collect every step: {one['growth']['text']}, {one['step_time']['text']}: remove it", " ".join(audit.text.split()))

    def test_an_environment_variable_is_there_before_the_interpreter_starts(self):
        os.environ.pop("PYTHONNOUSERSITE", None)
        with self.subTest(seed=SEED):
            audit = self.audit("audited:flag", ["PYTHONNOUSERSITE=1", "GARDEN_UNUSED=1"], settings={"size": self.size()})
            self.assertEqual(self.effects(audit), {"PYTHONNOUSERSITE=1": "ends", "GARDEN_UNUSED=1": "none"}, audit)

    def test_settings_reach_the_loop(self):
        with self.subTest(seed=SEED):
            small, large = sorted((self.size(), self.size()))
            audit = self.audit("audited:leak", ["keep=False", f"size={2 * large}"], settings={"size": large})
            self.assertEqual(self.effects(audit), {"keep=False": "ends", f"size={2 * large}": "more"}, audit)
            self.assertIn("doubles the growth", audit.text)

    def test_functions_and_workarounds_of_ones_own(self):
        import audited

        with self.subTest(seed=SEED):
            tenth = Workaround("clearing now and then", after_step=audited.clear_cache, every=4)
            audit = self.audit(audited.cached, [audited.clear_cache, tenth], settings={"size": self.size()})
            effects = self.effects(audit)
            self.assertEqual((effects["clear_cache every step"], len(effects)), ("ends", 2), audit)
            # Thirty steps of a sawtooth of four may leave an interval beside zero.
            now_and_then = audit.data["workarounds"][1]
            self.assertIn(now_and_then["effect"], ("ends", "less"), audit)
            self.assertEqual(now_and_then["advice"], "keep it", audit)

    def test_growth_of_a_process_that_the_loop_starts_counts(self):
        size = self.size()
        with self.subTest(seed=SEED, size=size):
            audit = self.audit("audited:in_a_child", ["malloc_trim"], settings={"size": size})
            growth = audit.data["workarounds"][0]["growth"]["before"]
            self.assertAlmostEqual(growth["value"] / size, 1.0, delta=0.05)

    def test_a_loop_that_nobody_can_import_is_forked(self):
        size = self.size()
        emptied = []

        def loop():
            kept = []
            while True:
                kept.append(bytearray(size))
                if emptied:
                    kept.clear()
                yield

        audit = self.audit(loop, [lambda: emptied.append(1)], rounds=2)
        self.assertEqual(list(self.effects(audit).values()), ["ends"], audit)
        self.assertEqual(emptied, [], "what runs in a copy must not come back")
        words = self.refused(loop, ["MALLOC_ARENA_MAX=2"])
        self.assertIn("`MALLOC_ARENA_MAX=2` is read when a process starts, so it needs a fresh interpreter", words)
        self.assertIn("hint: move it to the top level of a module", words)


@needs_binary
class Results(AuditCase):
    def test_record_page_and_data(self):
        record, page = self.path("record"), self.path("page.html")
        audit = self.audit("audited:leak", "gc.collect", record=record, report=page, rounds=2)
        self.assertEqual(sorted(os.listdir(record)), ["audit.json", "baseline-1.jsonl", "baseline-2.jsonl", "workaround-1-1.jsonl", "workaround-1-2.jsonl"])
        lines = self.trace_lines(os.path.join(record, "baseline-1.jsonl"))
        self.assertEqual((lines[0]["model_garden_trace"], len(lines)), (1, 1 + 30 + 6))
        self.assertLessEqual({"step", "time_s", "rss", "anon", "shmem", "swap"}, set(lines[1]))
        with open(page, encoding="utf-8") as file:
            written = file.read()
        self.assertIn("Memory with and without workarounds", written)
        self.assertIn("gc.collect every step", written)
        self.assertEqual(str(audit), audit.text)
        self.assertEqual(audit.data["loop"], "audited:leak")
        self.assertIn("holds the record of another audit", self.refused("audited:leak", "gc.collect", record=record))

    def test_a_script_audits_its_own_loop(self):
        script = self.path("script.py")
        guarded = (
            "import model_garden\n"
            "def loop():\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 20))\n        yield\n"
            "if __name__ == '__main__':\n    model_garden.audit(loop, ['gc.collect', 'GARDEN_UNUSED=1'], steps=20, rounds=2)\n"
        )
        with open(script, "w") as file:
            file.write(guarded)
        done = run_program([sys.executable, script], cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("USELESS  "), done.stdout)
        self.assertIn("round 2 of 2: gc.collect every step", done.stderr)
        with open(script, "w") as file:
            file.write(guarded.replace("if __name__ == '__main__':", "if True:"))
        done = run_program([sys.executable, script], cwd=self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn('under `if __name__ == "__main__":`', done.stderr)


class Refusals(AuditCase):
    def test_names_that_are_not_known(self):
        for name in ("gc.colect", "gc.collect/0", "gc.collect/x", "a b=1", ""):
            with self.subTest(name=name):
                words = self.refused("audited:leak", [name])
                self.assertIn(f"unknown workaround `{name}`\nhint: use gc.collect", words)
        self.assertIn("is not a workaround", self.refused("audited:leak", [7]))
        self.assertIn("is given twice", self.refused("audited:leak", ["gc.collect", "gc.collect/1"]))
        self.assertIn("no workaround to try", self.refused("audited:leak", []))
        self.assertIn("`every` of the workaround `w` is 0", self.refused("audited:leak", [Workaround("w", after_step=len, every=0)]))

    def test_numbers_that_make_no_sense(self):
        self.assertIn("`steps` is 5: too few", self.refused("audited:leak", ["gc.collect"], steps=5))
        self.assertIn("`rounds` is 1", self.refused("audited:leak", ["gc.collect"], rounds=1))
        self.assertIn("`warm_up` is -1", self.refused("audited:leak", ["gc.collect"], warm_up=-1))
        self.assertIn("`start` is 'spoon'", self.refused("audited:leak", ["gc.collect"], start="spoon"))
        self.assertIn("the loop is a int", self.refused(7, ["gc.collect"]))

    @needs_binary
    def test_loops_that_go_wrong_say_where(self):
        words = self.refused("audited:raising", ["gc.collect"])
        self.assertIn("the loop raised at step 7: ValueError: a step that went wrong", words)
        self.assertIn("audited.py", words)
        early = Workaround("processes", process_every=3, settings={"at": 2})
        words = self.refused("audited:raising", [early], settings={"at": 2000})
        self.assertIn("the loop raised at step 2: ValueError: a step that went wrong (with `processes`)", words)
        self.assertIn("the loop ended after 9 of 36 steps\nhint: use fewer `steps`", self.refused("audited:ending", ["gc.collect"]))
        self.assertIn("it returned a NoneType", self.refused("audited:no_generator", ["gc.collect"]))
        self.assertIn("signal 9", self.refused("audited:killed", ["gc.collect"]))
        self.assertIn("no step finished for 1 s\nhint: raise `patience`", self.refused("audited:hanging", ["gc.collect"], patience=1.0))

    @needs_binary
    def test_loops_that_are_not_there(self):
        self.assertIn("there is no module `nowhere`", self.refused("nowhere:loop", ["gc.collect"]))
        self.assertIn("module `audited` has no `nothing`", self.refused("audited:nothing", ["gc.collect"]))
        self.assertIn("is not of the form module:function", self.refused("audited", ["gc.collect"]))
        words = self.refused("audited:leak", ["gc.collect", "num_workers=0"])
        self.assertIn("the loop has no setting `num_workers`; it takes size, keep\nhint: `def loop(num_workers=...)`", words)

    @needs_binary
    @unittest.skipIf(__import__("importlib.util").util.find_spec("torch"), "torch is installed")
    def test_empty_cache_needs_torch(self):
        self.assertIn("`empty_cache` needs torch", self.refused("audited:leak", ["empty_cache"]))

    def test_without_proc_or_binary(self):
        with unittest.mock.patch.dict(os.environ, {"MODEL_GARDEN_BINARY": self.path("missing")}):
            self.assertIn("which is not a program", self.refused("audited:leak", ["gc.collect"]))
        with unittest.mock.patch.object(sys, "platform", "darwin"):
            patched = unittest.mock.patch("model_garden.trial.conduct.find_binary", return_value="unused")
            with patched:
                self.assertIn("Linux's /proc, which macOS does not have", self.refused("audited:leak", ["gc.collect"]))


@needs_binary
class Endings(AuditCase):
    """Whatever ends the audit, its processes end, and those that the loop started."""

    def ended_by(self, number):
        marker = self.path("marker")
        script = f"import model_garden; model_garden.audit('audited:hanging', ['gc.collect'], settings={{'marker': {marker!r}}})"
        variables = environment(PYTHONPATH=os.pathsep.join([PROGRAMS, environment()["PYTHONPATH"]]), TMPDIR=self.folder)
        program = subprocess.Popen([sys.executable, "-c", script], cwd=self.folder, env=variables, stderr=subprocess.PIPE, start_new_session=True)
        try:
            self.assertTrue(wait_until(lambda: os.path.exists(marker), 30), "the loop never began")
            with open(marker) as file:
                pids = [int(word) for word in file.read().split()]
            program.send_signal(number)
            program.communicate(timeout=30)
        finally:
            program.kill()
            program.wait()
        return program.returncode, pids

    def check_gone(self, pids):
        for pid in pids:
            self.assertTrue(wait_until(lambda: is_gone(pid)), f"{pid} is still there")

    def test_ctrl_c(self):
        code, pids = self.ended_by(signal.SIGINT)
        self.assertNotEqual(code, 0)
        self.check_gone(pids)

    def test_sigterm(self):
        code, pids = self.ended_by(signal.SIGTERM)
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.check_gone(pids)

    def test_sigkill(self):
        _, pids = self.ended_by(signal.SIGKILL)
        # The kernel ends the run itself; what the loop has forked on its own is its own to end.
        self.check_gone(pids[:1])
        os.kill(pids[1], signal.SIGKILL)


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


if __name__ == "__main__":
    print(f"GARDEN_SEED={SEED}", file=sys.stderr)
    unittest.main()
