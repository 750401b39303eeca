"""Which processes are needed to find out which piece makes memory grow, and what they measured as one document."""
import json
import os
import signal
import sys
import threading
import time

from . import counters
from .children import PickleError, run_all
from .measured import Plan, choose
from .pieces import Pieces, PiecesError, build
from .stages import FED

FORMAT = "model-garden-bisect"
EXAMPLES = 50
PASSES = 3
SECONDS = 60.0
# A process that tells nothing for so long is ended: a single batch should not take longer.
PATIENCE_S = 300.0
AT_ONCE = 2
# What is worth a closer look. Nothing is decided by it: the binary judges.
WORTH_A_LOOK = 192 << 10
MOST_LOOKS = 3


class BisectError(Exception):
    """The experiment could not be done; the text says why, with a hint."""


def conduct(source, examples=EXAMPLES, passes=PASSES, seconds=SECONDS, start="auto", patience=PATIENCE_S, say=None):
    """Runs the experiment and returns the document of what was measured.

    `source` is "module:function", a function that makes the pieces, a dict of pieces, or `Pieces`.
    """
    if not counters.is_supported():
        system = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
        raise BisectError(f"memory is read from Linux's /proc, which {system} does not have\nhint: run it in WSL 2, a Linux container or on a Linux machine")
    if passes < 2:
        raise BisectError(f"`passes` is {passes}: one pass cannot tell a cache from a leak\nhint: two at least, three are better")
    if examples < 8:
        raise BisectError(f"`examples` is {examples}: too few to see growth per example\nhint: 50 are a good number, 8 the least")
    if not isinstance(source, str) and not callable(source):
        source = _checked(source)
    start = _start(source, start)
    # Objects that were made here are shared by the forked processes, open files and their positions included: one at a time.
    at_once = 1 if start == "fork" and not callable(source) else min(AT_ONCE, os.cpu_count() or 1)
    begin = time.monotonic()
    experiment = _Experiment(source, start, at_once, patience, say or _say)
    try:
        return experiment.run(examples, passes, seconds, begin)
    except PickleError as error:
        raise BisectError(str(error)) from None


def write(document, path):
    """Writes the document to a file, wholly or not at all."""
    beside = f"{path}.{os.getpid()}.part"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.write("\n")
    os.replace(beside, path)


def _checked(source):
    try:
        return build(source)
    except PiecesError as error:
        raise BisectError(str(error)) from None


def _start(source, wanted):
    """How processes are started: `fresh` for what can be imported, `fork` for what exists here already, `spawn` if it has to be copied."""
    if isinstance(source, str):
        return "fresh"
    if wanted not in ("auto", "fork", "spawn"):
        raise BisectError(f"`start` is {wanted!r}; auto, fork or spawn is needed")
    has_cuda = _has_cuda()
    can_fork = hasattr(os, "fork") and not has_cuda
    if wanted == "fork" and not can_fork:
        reason = "this process uses CUDA, which does not survive a fork" if has_cuda else "this system cannot fork"
        raise BisectError(f"the pieces cannot be used in forked processes: {reason}\nhint: give 'module:function' instead")
    chosen = wanted if wanted != "auto" else ("fork" if can_fork else "spawn")
    if chosen == "spawn" and callable(source) and not isinstance(source, Pieces):
        raise BisectError("a function cannot be copied into a fresh process\nhint: give its name instead: 'module:function'")
    return chosen


def _has_cuda():
    torch = sys.modules.get("torch")
    try:
        return torch is not None and torch.cuda.is_initialized()
    except Exception:
        return False


def _say(text):
    print(f"model-garden: {text}", file=sys.stderr, flush=True)


class _Experiment:
    def __init__(self, source, start, at_once, patience, say):
        self.source = source
        self.start = start
        self.at_once = at_once
        self.patience = patience
        self.say = say
        self.notes = []

    def run(self, examples, passes, seconds, begin):
        """All of it: what the pieces are, each run, and a closer look at those that grew."""
        told = self._describe()
        present = told["pieces"]
        counted = self._count(told, examples)
        plans = self._plans(present, told["workers"], examples, passes)
        share = seconds * self.at_once / (len(plans) + 1)
        for plan in plans:
            plan.seconds = share
        self.say(f"{len(plans)} runs over {counted} examples, {passes} times each: {', '.join(plan.name for plan in plans)}")
        runs = [self._record(child) for child in self._run(plans)]
        looks = self._looks(runs, present, examples, passes, share)
        explained = [self._record(child) for child in self._run(looks)] if looks else []
        return {
            "format": FORMAT,
            "version": 1,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(time.monotonic() - begin, 3),
            "target": self.source if isinstance(self.source, str) else None,
            "start": self.start,
            "pieces": [{"name": name, "kind": told["kinds"][name]} for name in present],
            "versions": told["versions"],
            "examples": counted,
            "asked": examples,
            "dataset_length": told["length"],
            "batch_size": told["batch_size"],
            "workers": told["workers"],
            "passes": passes,
            "runs": runs,
            "looks": explained,
            "notes": self.notes,
        }

    def _describe(self):
        child = self._run([None])[0]
        for message in child.messages:
            if "pieces" in message:
                return message
            if "error" in message:
                raise BisectError(_error_words(message["error"]))
        raise BisectError(f"the process that makes the pieces {_end_words(child)}")

    def _count(self, told, examples):
        length = told["length"]
        if length is None:
            return examples
        _, counted = choose(length, examples, told["batch_size"])
        if len(counted) < 4:
            raise BisectError(f"the dataset has {length} examples: too few to see growth per example\nhint: give it 10 or more different ones; 60 are a good number")
        if len(counted) < examples:
            self.notes.append(f"{examples} examples were asked for; the dataset has {length}, of which {len(counted)} are counted and {length - len(counted)} warm up")
        return len(counted)

    @staticmethod
    def _plans(present, workers, examples, passes):
        plans = []
        for last in range(len(present)):
            names = present[: last + 1]
            plans.append(Plan(" + ".join(names), names, "chain", examples, passes, 0))
        for name in present[1:]:
            if name in FED or name == "callbacks":
                plans.append(Plan(f"{name} alone", [name], "alone", examples, passes, 0))
        if workers:
            plans.append(Plan(f"{workers} workers", ["workers"], "workers", examples, passes, 0))
        return plans

    def _looks(self, runs, present, examples, passes, share):
        """A closer look at the chains that hold more than the one before them."""
        before = 0
        wanted = []
        for run in runs:
            if run["how"] != "chain" or not run["passes"]:
                continue
            grown = run["passes"][-1]["held"] - run["base"]["held"]
            file = run["passes"][-1]["file"] - run["base"]["file"]
            if grown - before > WORTH_A_LOOK or file - before > 16 * WORTH_A_LOOK:
                wanted.append((grown - before, run))
            before = max(before, grown)
        wanted.sort(key=lambda row: row[0], reverse=True)
        return [Plan(run["name"], run["stages"], "explain", examples, passes, share) for _, run in wanted[:MOST_LOOKS]]

    def _run(self, plans):
        def on_message(plan, message):
            if plan is None:
                return
            if "error" in message:
                self.say(f"{plan.name}: {_first_line(message['error']['text'])}")
            elif "pass_end" in message:
                self.say(f"{plan.name}: pass {message['pass_end']['pass']} of {plan.passes} ({message['pass_end']['seconds']:.1f} s)")
            elif "holders" in message:
                self.say(f"{plan.name}: looked at what holds memory")

        with _ended_by_signals():
            return run_all(plans, self.source, self.start, self.at_once, self.patience, on_message)

    def _record(self, child):
        run = {"name": child.plan.name, "stages": child.plan.stages, "how": child.plan.how, "base": None, "visits": [], "passes": [], "after": [], "error": None, "stopped": None}
        mappings = None
        for message in child.messages:
            if "base" in message:
                run["base"] = message["base"]
                mappings = message["mappings"]
            elif "visit" in message:
                run["visits"].append(message["visit"])
            elif "pass_end" in message:
                run["passes"].append(message["pass_end"])
            elif "after" in message:
                run["after"].append(message["after"])
            elif "begin" in message:
                run.update(message["begin"])
            elif "end" in message and mappings is not None:
                after = message["end"]["mappings"]
                run["mappings"] = {kind: after.get(kind, 0) - mappings.get(kind, 0) for kind in sorted({*mappings, *after})}
            else:
                run.update({name: value for name, value in message.items() if name in ("error", "stopped", "holders")})
        is_done = any("done" in message for message in child.messages)
        if not is_done and run["error"] is None:
            run["error"] = {"stage": child.plan.stages[-1], "kind": "ended", "text": f"its process {_end_words(child)}"}
        child.close()
        return run


def _first_line(text):
    return text.strip().splitlines()[0] if text.strip() else text


def _error_words(error):
    where = error.get("traceback")
    return error["text"] + (f"\n  at {where[-1]}" if where else "")


def _end_words(child):
    if child.code is not None and child.code < 0:
        name = signal.Signals(-child.code).name if -child.code in set(signal.Signals) else str(-child.code)
        hint = ": the kernel kills a process so when memory runs out" if -child.code == signal.SIGKILL else ""
        how = f"was ended by signal {name}{hint}"
    else:
        how = f"ended with code {child.code} and said nothing"
    words = child.last_words()
    return how + (f"\n  its last output: {words.splitlines()[-1]}" if words else "")


class _ended_by_signals:
    """While processes run, SIGTERM ends them as Ctrl-C does."""

    def __enter__(self):
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._interrupt)

    @staticmethod
    def _interrupt(number, frame):
        raise KeyboardInterrupt

    def __exit__(self, *raised):
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
