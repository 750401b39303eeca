"""The callback with a stand-in trainer of the documented hooks, and the real binary."""
import copy
import json
import os
import pickle
import sys
import types
import unittest
import unittest.mock

import support
from support import FolderCase, Listener, PROGRAMS, binary, needs_binary, run_program, strict_python

TRAINER = os.path.join(PROGRAMS, "stand_in_trainer.py")


class Fixes(unittest.TestCase):
    def test_a_fix_is_that_of_a_cause_that_a_measurement_has_earned(self):
        from model_garden.monitor import Report

        cause = {"id": "graph_kept", "title": "a loss kept with its graph", "score": 0.4, "fix": "store loss.item()"}
        growth = {"bytes_per_step": 1024.0, "bytes_per_example": None, "bytes_per_second": None}
        data = {"verdict": "leak", "summary": "Memory leaks.", "memory": None, "growth": growth, "causes": [cause], "suspect": None, "next_command": None}
        self.assertNotIn("store loss.item()", Report("", data, None).summary)
        self.assertIn("store loss.item()", Report("", {**data, "suspect": "graph_kept"}, None).summary)


@needs_binary
class Alone(FolderCase):
    def test_lines_summary_and_verdict(self):
        done = self.program("stand_in_trainer.py", "--leak", "1", "--max_steps", "60", "--eval_steps", "16", "--save_steps", "30", "--step_time", "0.08")
        self.assertEqual(done.stderr, "")
        # How often it counts depends on the machine.
        self.assertRegex(done.stdout, r"(?m)^Step \d+0: 0 tensors \(CPU: 0, GPU: 0\), RAM: \d+ MiB$")
        self.assertRegex(done.stdout, r"(?m)^Step 60: .*RAM: \d+ MiB")
        # One growth figure: the verdict's.
        self.assertNotIn("Growth:", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^  growth \+1\.\d+ MiB per step")
        self.assertRegex(done.stdout, r"(?m)^  causes? +\S")
        # A fix is that of a cause that a measurement has earned.
        self.assertEqual("\n  fix    " in done.stdout, "\n  cause  " in done.stdout)
        self.assertRegex(done.stdout, r"(?m)^  next   model-garden bisect stand_in_trainer:pieces$")
        self.assertRegex(done.stdout, r"(?m)^Counting took \d+\.\d+% of the time")
        self.assertRegex(done.stdout, r"(?m)^LEAK  Memory leaks")
        self.assertRegex(done.stdout, r"(?m)^ended at step 60, verdict leak$")

    def test_the_trace_has_what_the_trainer_knows(self):
        self.program("stand_in_trainer.py", "--max_steps", "24", "--eval_steps", "16", "--save_steps", "20")
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith(".jsonl")], [])
        (path,) = self.kept_traces()
        trace = self.trace_lines(path)
        expected = {"examples": 32, "batch_size": 2, "gradient_accumulation": 2, "steps_per_epoch": 8, "total_steps": 24}
        self.assertEqual([line["facts"] for line in trace if line.get("facts")][-1], expected)
        events = [(line["step"], line["event"]) for line in trace if "event" in line]
        self.assertEqual(
            events,
            [(8, "epoch_end"), (16, "eval_start"), (16, "eval_end"), (16, "epoch_end"), (20, "checkpoint"), (24, "epoch_end"), (24, "exit")],
        )
        self.assertTrue(all(line["objects"] > 1000 for line in trace if "objects" in line))

    def test_the_lines_can_be_diagnosed_by_themselves(self):
        done = self.program("stand_in_trainer.py", "--leak", "1", "--max_steps", "80", "--every", "2", "--step_time", "0.01")
        with open(self.path("train.log"), "w") as file:
            file.write(done.stdout)
        judged = run_program([binary(), "diagnose", self.path("train.log"), "--format", "json", "--steps-per-epoch", "8"])
        report = json.loads(judged.stdout)
        self.assertEqual((report["verdict"], report["input"]["samples"]), ("leak", 40), judged.stdout[:500])


@needs_binary
class Watched(FolderCase):
    def test_under_monitor(self):
        command = [binary(), "monitor", "--plain", "--interval", "50ms", "-o", "trace.jsonl", "--", *strict_python(TRAINER, "--leak", "1")]
        done = run_program(command, cwd=self.folder, XDG_STATE_HOME=self.path("state"))
        text = done.stdout + done.stderr
        self.assertIn("The `model-garden` watching this run prints the verdict.", text)
        self.assertIn("ended at step 40, verdict None", text)
        self.assertEqual(self.kept_traces(), [], "no second monitor")

    def test_under_run_a_stop_is_obeyed_with_a_complete_checkpoint(self):
        words = ["--memory-limit", "150MB", "--interval", "50ms", "-o", "trace.jsonl", "--"]
        command = [binary(), "run", *words, *strict_python(TRAINER, "--leak", "1", "--max_steps", "5000", "--output_dir", "out")]
        done = run_program(command, cwd=self.folder)
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 75, text)
        self.assertIn("guard: will ask for a checkpoint over the event channel", text)
        self.assertRegex(text, r"Step (\d+): asked to stop before memory runs out; saving a checkpoint")
        self.assertRegex(text, r"checkpoint-\d+ is complete, nothing is lost \(exit code 75\)")


class Hooks(FolderCase):
    """The hooks in this process, with a listener at the other end."""

    def setUp(self):
        super().setUp()
        self.listener = Listener(self.path("events"))
        self.addCleanup(self.listener.close)
        self.addCleanup(os.environ.pop, "MODEL_GARDEN_EVENTS", None)
        os.environ["MODEL_GARDEN_EVENTS"] = self.listener.path
        from model_garden import MemoryMonitorCallback

        self.callback = MemoryMonitorCallback(quiet=True)
        self.args = types.SimpleNamespace(output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=4, world_size=1)
        self.state = types.SimpleNamespace(global_step=0, max_steps=20, is_local_process_zero=True)
        self.control = types.SimpleNamespace(should_save=False, should_training_stop=False, should_evaluate=True)

    def call(self, hook, **context):
        self.assertIs(getattr(self.callback, hook)(self.args, self.state, self.control, **context), self.control)

    def finish(self):
        if self.callback.run is not None:
            self.callback.run.finish()

    def test_a_stop_saves_before_it_evaluates_and_only_once(self):
        self.addCleanup(self.finish)
        self.call("on_train_begin", train_dataloader=None)
        self.listener.wait_for(lambda message: "facts" in message)
        self.listener.ask_to_stop()
        self.assertTrue(support.wait_until(lambda: self.callback.run.should_stop))
        self.state.global_step = 3
        self.call("on_step_end")
        self.assertEqual(vars(self.control), {"should_save": True, "should_training_stop": True, "should_evaluate": False})
        self.call("on_save")
        # What transformers' own flow wants at the end of an epoch.
        self.control.should_save = self.control.should_evaluate = True
        self.call("on_epoch_end")
        self.assertEqual(vars(self.control), {"should_save": False, "should_training_stop": True, "should_evaluate": False})
        self.call("on_train_end")
        self.listener.wait_for(lambda message: message.get("event") == "checkpoint")
        self.assertNotIn("epoch_end", [message.get("event") for message in self.listener.messages])
        paths = [message["path"] for message in self.listener.messages if "path" in message]
        self.assertEqual(paths, [os.path.abspath("out/checkpoint-3")])

    def test_facts_without_a_length_or_a_loader(self):
        from model_garden.callback import run_facts

        class Stream:
            def __len__(self):
                raise RuntimeError("unknown")

        loader = types.SimpleNamespace(dataset=Stream(), total_batch_size="?")
        self.args.world_size = 3
        facts = run_facts(self.args, self.state, loader)
        expected = {"examples": None, "batch_size": 6, "gradient_accumulation": 4, "steps_per_epoch": None, "total_steps": 20}
        self.assertEqual(facts, expected)
        self.assertEqual(set(run_facts(None, None, None).values()), {None, 1})

    def test_only_the_first_process_of_a_machine_speaks(self):
        self.state.is_local_process_zero = False
        for hook in ("on_train_begin", "on_step_end", "on_save", "on_epoch_end", "on_evaluate", "on_train_end"):
            self.call(hook)
        self.assertIsNone(self.callback.run)

    def test_new_hooks_are_there_and_other_names_are_not(self):
        self.assertIs(self.callback.on_something_new(self.args, self.state, self.control, more=1), self.control)
        with self.assertRaises(AttributeError):
            self.callback.something_else

    def test_it_can_be_copied_and_pickled(self):
        self.callback.every = 7
        for copied in (copy.deepcopy(self.callback), pickle.loads(pickle.dumps(self.callback))):
            self.assertIsNone(copied.run)
            self.assertTrue(copied.is_quiet)


class Trouble(FolderCase):
    def test_hooks_never_raise_whatever_they_get(self):
        script = """
import model_garden
class Evil:
    def __getattr__(self, name): raise RuntimeError(name)
    def __setattr__(self, name, value): raise RuntimeError(name)
    def __len__(self): raise MemoryError("len")
hooks = ["on_init_end", "on_train_begin", "on_step_end", "on_epoch_end", "on_prediction_step", "on_evaluate", "on_predict", "on_save", "on_log", "on_train_end"]
for every in (10, 0, -3, "x", None, 2.5):
    for odd in (None, Evil(), 7, "text", []):
        callback = model_garden.MemoryMonitorCallback(every=every)
        for hook in hooks:
            getattr(callback, hook)()
            getattr(callback, hook)(odd, odd, odd)
            getattr(callback, hook)(odd, odd, odd, train_dataloader=odd, model=odd, metrics=odd)
            assert getattr(callback, hook)(odd, odd, 5) == 5
print("survived")
"""
        done = run_program(strict_python("-c", script), cwd=self.folder, MODEL_GARDEN_EVENTS="/nowhere/events")
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1:]), (0, ["survived"]), done.stdout[-2000:] + done.stderr[-2000:])
        self.assertLessEqual(done.stderr.count("model-garden:"), 6, done.stderr)

    def test_without_a_binary_training_goes_on(self):
        done = run_program(strict_python(TRAINER, "--step_time", "0", "--save_steps", "10"), cwd=self.folder, MODEL_GARDEN_BINARY="/nowhere")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("ended at step 40, verdict None", done.stdout)
        self.assertEqual(done.stderr.count("model-garden:"), 1, done.stderr)


class Transformers(unittest.TestCase):
    def test_it_is_a_trainer_callback_once_transformers_is_imported(self):
        script = (
            "import sys, types, model_garden\n"
            "early = model_garden.MemoryMonitorCallback()\n"
            "fake = sys.modules['transformers'] = types.ModuleType('transformers')\n"
            "class TrainerCallback:\n"
            "    def on_new_hook(self, args, state, control, **context): return 'theirs'\n"
            "fake.TrainerCallback = TrainerCallback\n"
            "late, other = model_garden.MemoryMonitorCallback(every=3), model_garden.MemoryMonitorCallback()\n"
            "print(isinstance(early, TrainerCallback), isinstance(late, TrainerCallback), type(late) is type(other), type(late).__name__,\n"
            "      isinstance(late, model_garden.MemoryMonitorCallback), late.every, late.on_new_hook(1, 2, 3), early.on_new_hook(1, 2, 3))"
        )
        done = run_program(strict_python("-c", script))
        self.assertEqual(done.stdout, "False True True MemoryMonitorCallback True 3 theirs 3\n", done.stderr)


class Clock:
    """Time that passes only where the test says so, and while something is counted: how long a count really takes is up to a busy machine."""

    COUNT_S = 0.02

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def perf_counter(self):
        # A count asks when it begins and when it ends.
        self.now += self.COUNT_S
        return self.now


class Pace(unittest.TestCase):
    def test_counts_wait_for_their_share_of_the_time(self):
        from model_garden import counts

        clock = Clock()
        with unittest.mock.patch.object(counts, "time", clock):
            counter = counts.PacedCounter(share=0.01)
            self.assertAlmostEqual(counter.pause_s, 100 * Clock.COUNT_S)
            self.assertIsNone(counter.count_if_due(2))
            self.assertEqual((counter.skipped, counter.share_spent()), (1, 0.0), "the count before the steps is not theirs")
            clock.now += 0.99 * counter.pause_s
            self.assertIsNone(counter.count_if_due(2))
            clock.now += 0.02 * counter.pause_s
            self.assertIsNotNone(counter.count_if_due(3))
            self.assertLess(counter.share_spent(), 0.01)
            self.assertIsNone(counter.count_if_due(4))
            counter.count_now(5, with_types=True)
            self.assertEqual(counter.baseline.step, 0, "a count in the second half would hide most of the growth")
            counter.count_now(6, with_types=True)
            self.assertEqual(counter.baseline.step, 3)

    def test_types_that_grew_are_named(self):
        from model_garden import counts

        class Thing:
            pass

        before = counts.count(1)
        kept = [Thing() for _ in range(1000)]
        after = counts.count(2)
        self.assertEqual(after.grown_types(before, 1)[0], (1000, f"{__name__}.{Thing.__qualname__}"))
        self.assertEqual(len(kept), 1000)

    def test_tensors_are_counted_by_device_and_storage(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        from model_garden import counts

        before = counts.count(1)
        kept = [torch.ones(256, 1024) for _ in range(8)]
        kept += [tensor[:1] for tensor in kept]  # views share the memory
        kept.append(torch.empty(10, 10, device="meta"))
        after = counts.count(2, with_types=False)
        self.assertEqual((after.tensors - before.tensors, after.tensors_cpu - before.tensors_cpu), (17, 16))
        self.assertEqual(after.bytes_cpu - before.bytes_cpu, 8 << 20)
        self.assertEqual(after.grown_tensors(before, 1), [(8 << 20, 8, (256, 1024), "float32", "cpu")])
        if not torch.cuda.is_available():
            return
        kept += [torch.ones(1 << 20, device="cuda") for _ in range(3)]
        last = counts.count(3)
        self.assertEqual((last.tensors_gpu - after.tensors_gpu, last.bytes_gpu - after.bytes_gpu), (3, 12 << 20))
        self.assertEqual(last.grown_tensors(after, 1), [(12 << 20, 3, (1 << 20,), "float32", "cuda:0")])


if __name__ == "__main__":
    unittest.main()
