"""`watch` with the real binary: alone, under `monitor` and under `run`; and with everything that can be missing."""
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import support
from support import FolderCase, PROGRAMS, binary, environment, needs_binary, run_program, strict_python, wait_until

LOOP = os.path.join(PROGRAMS, "watched_loop.py")


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_binary
class Alone(FolderCase):
    def test_a_trace_is_kept_where_the_binary_keeps_them_else_among_temporary_files(self):
        code = "from model_garden.monitor import default_trace\nprint(default_trace(), default_trace())"
        for home, folder in (("home", "home/.local/state/model-garden/traces"), (None, "temporary")):
            os.makedirs(self.path("temporary"), exist_ok=True)
            environment = {"XDG_STATE_HOME": "relative", "HOME": home and self.path(home), "TMPDIR": self.path("temporary")}
            done = run_program(strict_python("-c", code), cwd=self.folder, **environment)
            paths = done.stdout.split()
            self.assertEqual([os.path.dirname(path) for path in paths], [self.path(folder)] * 2, done.stderr)
            self.assertEqual(len(set(paths)), 2, "one trace each")

    def test_a_leak_is_told_with_its_growth_and_the_trace(self):
        done = self.program("watched_loop.py", "60", "0.1", "1")
        # How a leak is worded, and in which unit, depends on which samples fall between the events.
        amount = r"(\d+ KiB|1\.\d\d MiB) per step"
        told = re.search(r"LEAK  Memory leaks: .*?" + amount, done.stdout)
        growth = re.search(r"  growth +\+" + amount, done.stdout)
        for found in (told, growth):
            self.assertIsNotNone(found, done.stdout)
            number, unit = found[1].split()
            mebibytes = float(number) / (1024 if unit == "KiB" else 1)
            self.assertAlmostEqual(mebibytes, 1.0, delta=0.1, msg=done.stdout)
        self.assertRegex(done.stdout, r"  from [\d.]+ MiB at the start to [\d.]+ MiB at the end \(\+[56]\d")
        self.assertRegex(done.stdout, r"ended at step 60 verdict leak trace /.*/state/model-garden/traces/model-garden-\d+-\d+\.jsonl\n")
        trace = self.trace_lines(done.stdout.split()[-1])
        facts = [line["facts"] for line in trace if line.get("facts")]
        self.assertEqual(facts[-1], {"examples": 40, "batch_size": 2, "gradient_accumulation": 2, "total_steps": 60})
        events = [line["event"] for line in trace if "event" in line]
        self.assertEqual(events, ["epoch_end", "eval_start", "eval_end"] * 6 + ["exit"])
        with open(self.path("report.txt"), encoding="utf-8") as file:
            self.assertIn("Likely causes", file.read())

    def test_flat_is_flat(self):
        done = self.program("watched_loop.py", "80", "0.02", "0")
        self.assertIn("verdict flat", done.stdout)

    def test_its_folder_is_removed_and_the_monitor_ends(self):
        folder = self.path("temporary")
        os.mkdir(folder)
        self.program("watched_loop.py", "20", "0.02", "0", TMPDIR=folder)
        self.assertEqual(os.listdir(folder), [])

    def test_a_loop_that_raises_still_gets_its_verdict(self):
        script = (
            "import time, model_garden\n"
            "with model_garden.watch(interval='50ms') as run:\n"
            "    for _ in range(30): time.sleep(0.02); run.step()\n"
            "    raise SystemExit(7)"
        )
        done = run_program(strict_python("-c", script), cwd=self.folder)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("trace: ", done.stdout)

    def test_a_run_that_is_never_finished_is_finished_at_exit(self):
        script = (
            "import time, model_garden\n"
            "run = model_garden.watch(interval='50ms')\n"
            "for _ in range(30): time.sleep(0.02); run.step()"
        )
        done = run_program(strict_python("-c", script), cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("trace: ", done.stdout)

    def test_the_monitor_ends_when_the_program_is_killed(self):
        script = (
            "import time, model_garden\n"
            "with model_garden.watch(interval='50ms') as run:\n"
            "    print(run._monitor.pid, flush=True)\n"
            "    time.sleep(60)"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script], cwd=self.folder, env=environment(), stdout=subprocess.PIPE, universal_newlines=True
        )
        monitor = int(child.stdout.readline())
        self.assertTrue(is_running(monitor))
        child.kill()
        child.wait()
        child.stdout.close()
        self.assertTrue(wait_until(lambda: not is_running(monitor)), "the monitor outlived what it watched")

    def test_forked_workers_change_nothing(self):
        script = (
            "import multiprocessing, os, sys, time, model_garden\n"
            "def work(number):\n"
            "    run.step(10_000); run.epoch_end(); run.finish(); return os.getpid()\n"
            "with model_garden.watch(interval='50ms') as run:\n"
            "    for _ in range(20): time.sleep(0.02); run.step()\n"
            "    with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(work, range(4))\n"
            "    child = os.fork()\n"
            "    if child == 0: sys.exit(0)\n"
            "    assert os.waitpid(child, 0)[1] == 0\n"
            "    for _ in range(20): time.sleep(0.02); run.step()\n"
            "print(run.trace)"
        )
        # Not strict: since 3.12 a fork beside a thread is itself a warning.
        done = run_program([sys.executable, "-c", script], cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = self.trace_lines(done.stdout.split()[-1])
        self.assertNotIn("epoch_end", [line.get("event") for line in trace])
        self.assertLessEqual(max(line.get("step", 0) for line in trace), 40)

    def test_a_monitor_that_hangs_costs_a_moment(self):
        stub = self.path("model-garden")
        with open(stub, "w") as file:
            file.write("#!/bin/sh\nexec sleep 100\n")
        os.chmod(stub, 0o755)
        script = (
            "import model_garden, model_garden.monitor as monitor\n"
            "monitor.START_TIMEOUT_S = 0.5\n"
            "with model_garden.watch() as run: run.step()\n"
            "print(run.is_watched)"
        )
        begin = time.monotonic()
        done = run_program(strict_python("-c", script), cwd=self.folder, MODEL_GARDEN_BINARY=stub)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual((done.returncode, done.stdout), (0, "False\n"), done.stderr)
        self.assertIn("this run is not watched: the monitor did not respond within", done.stderr)

    def test_a_monitor_that_is_killed_costs_its_report_only(self):
        script = (
            "import os, signal, time, model_garden\n"
            "with model_garden.watch(interval='50ms') as run:\n"
            "    run.step(); time.sleep(0.2)\n"
            "    os.kill(run._monitor.pid, signal.SIGKILL)\n"
            "    time.sleep(0.2)\n"
            "    for _ in range(10): run.step(); time.sleep(0.02)\n"
            "print('done')"
        )
        done = run_program(strict_python("-c", script), cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)
        self.assertIn("Training continues.", done.stderr)


@needs_binary
class Watched(FolderCase):
    def test_under_monitor_the_steps_and_facts_are_in_its_trace(self):
        command = [binary(), "monitor", "--plain", "--interval", "50ms", "-o", "trace.jsonl", "--", *strict_python(LOOP, "40", "0.05", "1")]
        done = run_program(command, cwd=self.folder)
        self.assertIn("ended at step 40 verdict None trace None", done.stdout + done.stderr)
        trace = self.trace_lines(self.path("trace.jsonl"))
        self.assertIn({"examples": 40, "batch_size": 2, "gradient_accumulation": 2, "total_steps": 40}, [line.get("facts") for line in trace])
        self.assertEqual([line["event"] for line in trace if "event" in line].count("epoch_end"), 4)
        self.assertGreater(len({line["step"] for line in trace if "rss" in line and "step" in line}), 8)

    def test_under_run_it_stops_with_a_checkpoint(self):
        words = ["--memory-limit", "150MB", "--checkpoint-dir", "out", "--interval", "50ms", "-o", "trace.jsonl"]
        done = run_program([binary(), "run", *words, "--", *strict_python(LOOP, "1000", "0.02", "1")], cwd=self.folder)
        self.assertEqual(done.returncode, 75, done.stdout + done.stderr)
        saved = os.listdir(self.path("out"))
        self.assertEqual(len(saved), 1)
        with open(os.path.join(self.path("out"), saved[0], "trainer_state.json")) as file:
            self.assertEqual(f"checkpoint-{json.load(file)['global_step']}", saved[0])


class Trouble(FolderCase):
    def test_without_a_binary_the_loop_runs_with_one_warning(self):
        for more in ({"MODEL_GARDEN_BINARY": "/nowhere"}, {"MODEL_GARDEN_EVENTS": "/nowhere/events"}):
            done = run_program(strict_python(LOOP, "5", "0", "0"), cwd=self.folder, **more)
            self.assertEqual((done.returncode, done.stdout), (0, "ended at step 5 verdict None trace None\n"), done.stderr)
            self.assertEqual(done.stderr.count("model-garden:"), 1, done.stderr)

    def test_odd_arguments_are_left_out(self):
        script = (
            "import model_garden\n"
            "with model_garden.watch(examples='many', batch_size=object(), total_steps=-1, steps_per_epoch=float('inf')) as run:\n"
            "    run.step('x'); run.step(); run.step(7.0); run.checkpoint(object()); run.checkpoint(); run.epoch_end()\n"
            "print(run.current_step)"
        )
        done = run_program(strict_python("-c", script), cwd=self.folder, MODEL_GARDEN_EVENTS="/nowhere/events")
        self.assertEqual((done.returncode, done.stdout), (0, "7\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
