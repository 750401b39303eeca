"""What `bisect` says when something goes wrong, and that nothing is left running."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock
import uuid

import support
from support import FolderCase, PROGRAMS, needs_binary, run_program, strict_python, wait_until

sys.path.insert(0, PROGRAMS)
import broken

import model_garden
from model_garden.experiment import counters, measured
from model_garden.experiment.conduct import conduct

PATHS = os.pathsep.join([support.PACKAGE_FOLDER, PROGRAMS])


def with_mark(mark):
    """The processes that have inherited a mark, whoever started them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


class TroubleCase(FolderCase):
    def setUp(self):
        super().setUp()
        self.mark = uuid.uuid4().hex

    def variables(self):
        return {"PYTHONPATH": PATHS, "MODEL_GARDEN_TEST_MARK": self.mark}

    def command(self, target, *more):
        return [support.binary(), "bisect", f"broken:{target}", "--python", sys.executable, "--passes", "2", "--examples", "40", *more]

    def bisect(self, target, *more):
        """Runs the command to its end, after which nothing it started may be left."""
        done = run_program(self.command(target, *more), cwd=self.folder, **self.variables())
        self.assertEqual(with_mark(self.mark), [])
        return done

    def finding(self, target, *more, code=2):
        done = self.bisect(target, "--format", "json", *more)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout)


@needs_binary
class Raising(TroubleCase):
    def test_a_dataset_that_raises_is_told_with_the_example(self):
        finding = self.finding("raising_dataset")
        self.assertEqual(finding["verdict"], "failed")
        self.assertRegex(finding["summary"], r"^A run failed: the dataset raised at example 31: ValueError: example 31 is torn \(.*broken\.py:\d+ in at: raise ValueError")
        # What needs the dataset is not tried in vain.
        self.assertEqual([stage["name"] for stage in finding["stages"]][:1], ["dataset"])
        self.assertLessEqual(len(finding["stages"]), 2)
        self.assertTrue(any(note.startswith("skipped, as `dataset` failed: ") for note in finding["notes"]), finding["notes"])

    def test_a_generator_is_told_that_it_can_be_gone_through_once(self):
        self.assertIn("a generator can be iterated only once, but each pass starts over", self.finding("generator")["summary"])

    def test_a_processor_that_raises_is_told_with_the_example(self):
        finding = self.finding("raising_processor")
        self.assertIn("the processor raised at example 31: ValueError: example 31 is torn", finding["summary"])
        self.assertEqual({stage["name"]: stage["kind"] for stage in finding["stages"]}["dataset"], "flat")

    def test_a_collator_that_raises_is_told_with_the_batch(self):
        finding = self.finding("raising_collator")
        self.assertRegex(finding["summary"], r"the collator raised in the batch of examples \d+, \d+: KeyError: 'pixel_values'")
        kinds = {stage["name"]: stage["kind"] for stage in finding["stages"]}
        self.assertEqual([kinds["dataset"], kinds["dataset + processor"], kinds["processor alone"]], ["flat"] * 3)

    def test_a_model_and_a_callback_that_raise_are_told(self):
        self.assertRegex(self.finding("raising_model")["summary"], r"the model raised in the batch of examples \d+, \d+: RuntimeError: shapes do not match")
        self.assertIn("example 12 is torn", self.finding("raising_callback")["summary"])

    def test_a_worker_that_raises_is_told(self):
        finding = self.finding("raising_worker")
        kinds = {stage["name"]: (stage["kind"], stage["error"]) for stage in finding["stages"]}
        self.assertEqual((kinds["dataset"], kinds["2 workers"][0]), (("flat", None), "failed"))
        self.assertIn("ValueError: example 31 is torn", kinds["2 workers"][1])

    def test_a_failure_in_text_is_exit_code_2_and_words(self):
        done = self.bisect("raising_processor")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertTrue(done.stdout.startswith("FAILED  A run failed: the processor raised at example 31"), done.stdout)

    def test_a_failure_is_exit_code_2_whatever_was_found_before_it(self):
        finding = self.finding("raising_after_a_cache")
        self.assertEqual((finding["verdict"], finding["growths"][0]["keeper"]), ("cache", "dataset"))
        self.assertIn("A run failed: the collator raised in the batch of examples ", finding["summary"])
        # A leak is bad news in any case.
        self.assertEqual(self.finding("raising_after_a_leak", code=1)["verdict"], "leak")

    def test_signals_that_end_a_measured_process_are_named(self):
        for target, words in (
            ("killed", "was killed by signal SIGKILL: the kernel does this when memory runs out"),
            ("crashing", "was killed by signal SIGSEGV"),
            ("leaving", "exited with code 1 without a message\n  its last output: I have had enough"),
        ):
            with self.subTest(target=target):
                self.assertIn(words, self.finding(target)["summary"])

    def test_a_worker_that_dies_is_told(self):
        finding = self.finding("killed_worker")
        kinds = {stage["name"]: (stage["kind"], stage["error"]) for stage in finding["stages"]}
        self.assertEqual(kinds["dataset"], ("flat", None))
        self.assertEqual(kinds["2 workers"][0], "failed")
        self.assertIn("the worker ended", kinds["2 workers"][1])
        self.assertTrue(any(note.startswith("2 workers: ") for note in finding["notes"]), finding["notes"])

    def test_a_piece_that_hangs_is_given_up(self):
        begin = time.monotonic()
        document = conduct(broken.hanging, passes=2, patience=1.0, say=lambda text: None)
        self.assertLess(time.monotonic() - begin, 10)
        errors = {run["name"]: run["error"] and run["error"]["text"] for run in document["runs"]}
        self.assertIsNone(errors["dataset"])
        self.assertEqual(errors["dataset + processor"], "no response for 1 s")
        self.assertNotIn("dataset + processor + collator + callbacks", errors)

    def test_a_run_that_would_take_the_last_memory_is_stopped(self):
        # Room for 300 MiB more than this process has now, whatever others take or give back meanwhile: those that are forked from it have no other room.
        room = counters.quick()["held"] + measured.LEAST_AVAILABLE + (300 << 20)
        with unittest.mock.patch.object(counters, "available", lambda: room - counters.quick()["held"]):
            document = conduct(broken.leaking, passes=2, say=lambda text: None)
        stopped = [run["stopped"] for run in document["runs"] if run["name"] == "dataset + processor"][0]
        self.assertEqual(stopped["pass"], 1)
        record = self.path("record.json")
        with open(record, "w") as file:
            json.dump(document, file)
        done = run_program([support.binary(), "bisect", record, "--format", "json"])
        growth = json.loads(done.stdout)["growths"][0]
        self.assertEqual((growth["kind"], growth["begins_with"]), ("undecided", "processor"))
        self.assertAlmostEqual(growth["bytes_per_example"], 8 << 20, delta=1 << 20)
        self.assertIn("stopped in pass 1 after", done.stdout)
        self.assertEqual(done.returncode, 3)


@needs_binary
class Odd(TroubleCase):
    def test_much_output_a_closed_output_and_another_folder_change_nothing(self):
        for target in ("printing", "closing"):
            with self.subTest(target=target):
                finding = self.finding(target, code=0)
                self.assertEqual((finding["verdict"], len(finding["stages"])), ("flat", 3))

    def test_files_are_where_they_were_meant_to_be(self):
        done = self.bisect("changing_folder", "--record", "record.json", "--output", "answer.txt")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["answer.txt", "record.json"])

    def test_pieces_with_threads_are_made_anew_in_each_process(self):
        finding = self.finding("threaded", code=0)
        self.assertEqual((finding["verdict"], [stage["name"] for stage in finding["stages"]]), ("flat", ["dataset", "dataset + processor"]))
        self.assertEqual(finding["notes"], ["the pieces start threads, which forked processes do not have: only callbacks were run alone"])

    def test_examples_that_cannot_be_pickled_leave_out_the_piece_alone(self):
        finding = self.finding("unpicklable_examples", code=0)
        kinds = {stage["name"]: stage["kind"] for stage in finding["stages"]}
        self.assertEqual(kinds, {"dataset": "flat", "dataset + processor": "flat", "processor alone": "failed"})
        self.assertTrue(any(note.startswith("processor alone: ") and "pickle" in note for note in finding["notes"]), finding["notes"])

    def test_fewer_examples_than_asked_for_are_used_and_said(self):
        finding = self.finding("few", code=0)
        self.assertEqual((finding["verdict"], finding["examples"]), ("flat", 15))
        self.assertEqual(finding["notes"], ["40 examples requested; the dataset has 20: 15 counted, 5 for the warm-up"])
        finding = self.finding("short_iterable", code=0)
        self.assertEqual(finding["examples"], 22)
        self.assertEqual(finding["notes"], ["40 examples requested; the dataset gave 22 after the warm-up"])

    def test_one_example_again_and_again_is_said(self):
        finding = self.finding("same", code=0)
        said = "the dataset returns the same object for every index, which hides memory kept per new example; use different examples"
        self.assertEqual((finding["verdict"], finding["notes"]), ("flat", [said]))

    def test_far_too_few_are_an_error(self):
        done = self.bisect("too_few")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("error: the dataset has 3 examples: too few to see growth per example\nhint: use 10 or more different ones", done.stderr)

    def test_a_target_that_makes_no_pieces_is_explained(self):
        for target, words in (
            ("absent", "error: module `broken` has no `absent`; it has Numbers, raise_at"),
            ("nonsense", "error: a int is neither a dataset nor a dict of pieces\nhint: return a dict"),
            ("nothing", "error: no pieces: got None\nhint: return a dict"),
            ("misspelt", "error: unknown piece `colator`\nhint: the pieces are dataset, processor, collator"),
            ("failing", "error: cannot make the pieces: KeyError: 'checkpoint'\n  at "),
        ):
            with self.subTest(target=target):
                done = self.bisect(target)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(words, done.stderr)

    def test_a_module_that_does_not_exist_is_explained(self):
        done = run_program([support.binary(), "bisect", "no_such_module:pieces", "--python", sys.executable], cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "error: there is no module `no_such_module`\nhint: run it from the folder of no_such_module.py, or set PYTHONPATH\n")

    def test_a_python_without_the_package_is_told_so(self):
        # Isolated, so that neither this folder nor PYTHONPATH helps it.
        script = self.path("python")
        with open(script, "w") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
        os.chmod(script, 0o755)
        done = run_program([support.binary(), "bisect", "broken:few", "--python", script], cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^error: \S+ does not have the package `model-garden`\n\nhint: pip install the wheel")


@needs_binary
class Python(TroubleCase):
    """The same through `model_garden.bisect`."""

    def test_an_unpicklable_piece_is_named(self):
        rows = broken.Numbers(at=lambda number: None)
        with self.assertRaisesRegex(model_garden.BisectError, r"the dataset \(Numbers\) cannot be copied into a fresh process: .*\nhint: pass a function"):
            model_garden.bisect(dataset=rows, start="spawn", quiet=True)

    def test_picklable_pieces_may_be_copied(self):
        found = model_garden.bisect(dataset=broken.Numbers(), processor=str, start="spawn", passes=2, quiet=True)
        self.assertEqual(found.verdict, "flat")
        self.assertIn("the pieces were copied by pickle", found.text)

    def test_a_target_may_be_started_afresh(self):
        with unittest.mock.patch.dict(os.environ, self.variables()):
            found = model_garden.bisect("broken:few", start="spawn", passes=2, quiet=True)
        self.assertEqual(found.verdict, "flat")

    def test_errors_of_a_target_are_raised_with_their_words(self):
        with unittest.mock.patch.dict(os.environ, self.variables()):
            with self.assertRaises(model_garden.BisectError) as raised:
                model_garden.bisect("broken:failing", quiet=True)
        self.assertRegex(str(raised.exception), r"^cannot make the pieces: KeyError: 'checkpoint'\n  at .*broken\.py:\d+ in failing")

    def test_settings_that_cannot_be_are_refused(self):
        for more, words in (
            ({"passes": 1}, "one pass cannot tell a cache from a leak"),
            ({"examples": 4}, "too few to see growth per example"),
            ({"start": "thread"}, "use auto, fork or spawn"),
            ({"batch_size": 0}, "`batch_size` is 0; expected a whole number of at least 1"),
            ({"processor": 3}, "the processor is a int, which is not callable"),
            ({"loss": print}, "`loss` needs a model"),
        ):
            with self.subTest(more), self.assertRaisesRegex(model_garden.BisectError, words):
                model_garden.bisect(dataset=list(range(60)), quiet=True, **more)
        with self.assertRaisesRegex(model_garden.BisectError, "pieces were passed twice"):
            model_garden.bisect({"dataset": []}, dataset=[])

    def in_child(self, script, **more):
        return run_program(strict_python("-c", script), cwd=self.folder, **self.variables(), **more)

    def test_without_a_binary_nothing_is_begun(self):
        script = "import model_garden\ntry: model_garden.bisect(dataset=None)\nexcept FileNotFoundError as error: print(error)"
        done = self.in_child(script, MODEL_GARDEN_BINARY="/nowhere")
        self.assertEqual((done.stdout.splitlines()[0], done.stderr), ("MODEL_GARDEN_BINARY names `/nowhere`, which is not a program", ""))

    def test_other_systems_are_told_so(self):
        for platform, name in (("win32", "Windows"), ("darwin", "macOS")):
            script = (
                "import sys, model_garden, model_garden.experiment.conduct\n"
                f"sys.platform = {platform!r}\n"
                "try: model_garden.bisect(dataset=list(range(60)))\nexcept model_garden.BisectError as error: print(error)"
            )
            done = self.in_child(script)
            self.assertEqual(done.stdout, f"memory is read from Linux's /proc, which {name} does not have\nhint: run it in WSL 2, a Linux container or on a Linux machine\n", done.stderr)

    def test_linux_without_proc_is_told_so(self):
        script = (
            "import os, model_garden, model_garden.experiment.conduct\n"
            "model_garden.experiment.counters.os.path.exists = lambda path: False\n"
            "try: model_garden.bisect(dataset=list(range(60)))\nexcept model_garden.BisectError as error: print(error)"
        )
        done = self.in_child(script)
        self.assertEqual(done.stdout, "memory is read from /proc, which is missing\nhint: mount it, or run outside this sandbox\n", done.stderr)

    def test_running_counters_do_where_page_tables_are_not_summed_up(self):
        script = (
            "import model_garden, model_garden.experiment.counters as counters\n"
            "read = counters._fields\n"
            "counters._fields = lambda path, wanted: {} if path.endswith('smaps_rollup') else read(path, wanted)\n"
            "kept = []\n"
            "found = model_garden.bisect(dataset=list(range(60)), processor=lambda number: kept.append(b'x' * 200_000), passes=3, quiet=True)\n"
            "print(found.verdict, found.growth['keeper'], found.growth['held_at'])"
        )
        done = self.in_child(script)
        self.assertEqual((done.stdout, done.stderr), ("leak module __main__ module __main__.kept\n", ""))

    def test_without_fork_processes_are_started_afresh(self):
        script = (
            "import os, broken, model_garden\ndel os.fork\n"
            "for pieces in ('broken:few', {'dataset': broken.Numbers(), 'processor': str}):\n"
            "    found = model_garden.bisect(pieces, passes=2, quiet=True); print(found.verdict, [stage['name'] for stage in found.data['stages']])\n"
            "try: model_garden.bisect(dataset=[1] * 60, start='fork')\nexcept model_garden.BisectError as error: print(error)"
        )
        done = self.in_child(script)
        self.assertEqual(done.stderr, "")
        self.assertEqual(
            done.stdout.splitlines(),
            [
                "flat ['dataset']",
                "flat ['dataset', 'dataset + processor']",
                "the pieces cannot be used in forked processes: this system cannot fork",
                "hint: pass 'module:function' instead",
            ],
        )

    def test_nothing_is_left_open(self):
        """Under `-X dev -W error`, files that were not closed would be told."""
        done = self.in_child("import broken, model_garden; print(model_garden.bisect(broken.few, passes=2, quiet=True))")
        self.assertEqual((done.stderr, done.returncode), ("", 0))
        self.assertTrue(done.stdout.startswith("<Bisection: flat: Nothing grows: "), done.stdout)


@needs_binary
class Ended(TroubleCase):
    """Whatever ends the experiment ends everything that it started."""

    def check(self, words, number, code, needed=4, to_all=False):
        """Sends a signal, to the process or to its whole group as a terminal does; everything must end then."""
        variables = support.environment(**self.variables())
        process = subprocess.Popen(words, env=variables, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        # The experiment itself, measured processes, and feeders or workers of them.
        self.assertTrue(wait_until(lambda: len(with_mark(self.mark)) >= needed, 30), with_mark(self.mark))
        os.killpg(process.pid, number) if to_all else process.send_signal(number)
        self.assertEqual(process.wait(20), code)
        self.assertTrue(wait_until(lambda: not with_mark(self.mark), 10), f"left: {with_mark(self.mark)}")
        return process.stderr.read().decode()

    def test_an_interrupt(self):
        told = self.check(self.command("only_workers"), signal.SIGINT, 130)
        self.assertTrue(told.endswith("error: interrupted; the measured processes were stopped\n"), told)

    def test_a_request_to_end(self):
        self.check(self.command("only_workers"), signal.SIGTERM, 143)

    def test_a_kill(self):
        self.check(self.command("only_workers"), signal.SIGKILL, -9)

    def test_a_kill_while_pieces_are_fed(self):
        self.check(self.command("slow"), signal.SIGKILL, -9, needed=5)

    def test_an_interrupt_of_a_program_that_called_it(self):
        script = "import broken, model_garden; model_garden.bisect(broken.only_workers())"
        self.check([sys.executable, "-c", script], signal.SIGINT, -signal.SIGINT)

    def test_control_c_on_a_terminal(self):
        self.check(self.command("only_workers"), signal.SIGINT, 130, to_all=True)
        self.check(self.command("slow"), signal.SIGINT, 130, to_all=True)

    def test_control_c_on_a_terminal_of_a_program_that_called_it_by_name(self):
        script = "import model_garden; model_garden.bisect('broken:only_workers')"
        self.check([sys.executable, "-c", script], signal.SIGINT, -signal.SIGINT, needed=5, to_all=True)

    def test_a_kill_of_a_program_that_called_it_by_name(self):
        script = "import model_garden; model_garden.bisect('broken:only_workers')"
        self.check([sys.executable, "-c", script], signal.SIGKILL, -9, needed=5)


class Files(FolderCase):
    """What a forked process reads of an open file does not move the others on."""

    def test_every_process_has_its_own_position(self):
        path = self.path("rows")
        with open(path, "wb") as file:
            file.write(bytes(range(256)) * 400)
        with open(path, "rb") as rows, open(path, "r+b") as both:
            start, rest = rows.read(9000), both.read(70_000)
            os.unlink(path)
            for _ in range(2):
                pid = os.fork()
                if pid == 0:
                    try:
                        counters.own_files()
                        os._exit(0 if start + rows.read() == bytes(range(256)) * 400 and rest + both.read() == bytes(range(256)) * 400 else 1)
                    finally:
                        os._exit(2)
                self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertEqual(len(start + rows.read()), 256 * 400)


class Room(FolderCase):
    """What a control group leaves is told from its files."""

    def group(self, path, **files):
        folder = self.path(path)
        os.makedirs(folder, exist_ok=True)
        for name, text in files.items():
            with open(os.path.join(folder, name.replace("_", ".", 1)), "w") as file:
                file.write(text)
        return folder

    def test_pages_of_files_are_given_up_first(self):
        folder = self.group("a", memory_max="1000\n", memory_current="900\n", memory_stat="anon 100\ninactive_file 650\nactive_file 150\n")
        self.assertEqual(counters.room_in(folder), 750)

    def test_no_limit_and_no_group_are_none(self):
        self.assertIsNone(counters.room_in(self.group("b", memory_max="max\n", memory_current="900\n", memory_stat="")))
        self.assertIsNone(counters.room_in(self.path("nowhere")))

    def test_the_smallest_room_counts(self):
        folder = self.group("c", memory_max="1000\n", memory_current="900\n", memory_stat="")
        with unittest.mock.patch.object(counters, "control_groups", lambda: [folder]):
            self.assertEqual(counters.available(), 100)
        with unittest.mock.patch.object(counters, "control_groups", lambda: []):
            self.assertIn(counters.available(), range(1 << 20, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))

    def test_all_groups_around_count(self):
        listing = self.path("cgroup")
        with open(listing, "w") as file:
            file.write("12:cpu:/x\n4:memory:/docker/abc\n0::/user.slice/me\n")
        self.assertEqual(
            counters.control_groups(listing, "/c"),
            ["/c", "/c/memory", "/c/memory/docker/abc", "/c/memory/docker", "/c/user.slice/me", "/c/user.slice"],
        )


if __name__ == "__main__":
    unittest.main()
