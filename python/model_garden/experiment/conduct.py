"""Which processes are needed to find out which piece makes memory grow, and what they measured as one document."""
import os
import signal
import sys
import threading
import time

from ..processes import ended_by_sigterm, uses_cuda
from . import counters
from .children import PickleError, run_all
from .measured import Plan, choose, length_of, places_of, versions, words_of
from .pieces import PiecesError, build, load
from .stages import FED

FORMAT = "model-garden-bisect"
EXAMPLES = 50
FEWEST_ASKED = 8
SECONDS = 60.0
# A process that is silent for longer is ended: a single batch should not take longer.
PATIENCE_S = 300.0
AT_ONCE = 2
SPEECH_PAUSE_S = 2.0
# Loader workers get more examples where those are cheap: pages are copied in small pieces.
WORKERS_S = 2.0
MOST_TIMES = 20
# What is worth a closer look. Nothing is decided by it: the binary judges.
WORTH_A_LOOK = 192 << 10
MOST_LOOKS = 3


class BisectError(Exception):
    """The experiment could not be done; the text says why, with a hint."""


def conduct(source, examples=EXAMPLES, passes=None, seconds=SECONDS, start="auto", patience=PATIENCE_S, say=None):
    """Runs the experiment and returns the document of what was measured.

    `source` is "module:function", a function that makes the pieces, a dict of pieces, or `Pieces`. The pieces are made once, here; each run is a
    process that is forked from this one and so begins with the same memory.
    """
    reason = counters.why_not()
    if reason:
        raise BisectError(reason)
    if passes is not None and passes < 2:
        raise BisectError(f"`passes` is {passes}: one pass cannot tell a cache from a leak\nhint: use at least 2; 3 is better")
    if examples < FEWEST_ASKED:
        raise BisectError(f"`examples` is {examples}: too few to see growth per example\nhint: 50 is a good number, {FEWEST_ASKED} the minimum")
    begin = time.monotonic()
    threads = threading.active_count()
    pieces = _made(source)
    has_threads = threading.active_count() > threads
    start = _start(source, start, has_threads)
    experiment = _Experiment(source, pieces, start, min(AT_ONCE, os.cpu_count() or 1), patience, say or _say)
    if has_threads:
        experiment.note_threads()
    try:
        return experiment.run(examples, passes, seconds, begin)
    except PickleError as error:
        raise BisectError(str(error)) from None


def _made(source):
    try:
        return build(load(source) if isinstance(source, str) else source)
    except PiecesError as error:
        raise BisectError(str(error)) from None
    except Exception as error:
        raise BisectError(f"cannot make the pieces: {words_of(error)}" + "".join(f"\n  at {place}" for place in places_of(error)[-1:])) from error


def _start(source, wanted, has_threads):
    """How processes are started: forked if that is safe, else `fresh` for what can be imported, else `spawn`, which has to copy the pieces."""
    if wanted not in ("auto", "fork", "spawn"):
        raise BisectError(f"`start` is {wanted!r}; use auto, fork or spawn")
    reason = "this process uses CUDA, which does not survive a fork" if uses_cuda() else None if hasattr(os, "fork") else "this system cannot fork"
    if wanted == "fork" and reason:
        raise BisectError(f"the pieces cannot be used in forked processes: {reason}\nhint: pass 'module:function' instead")
    if wanted == "auto" and has_threads and isinstance(source, str):
        return "fresh"
    if wanted != "spawn" and not reason:
        return "fork"
    return "fresh" if isinstance(source, str) else "spawn"


def _say(text):
    print(f"model-garden: {text}", file=sys.stderr, flush=True)


class _Experiment:
    def __init__(self, source, pieces, start, at_once, patience, say):
        # A fresh process is told the name, the others get the pieces.
        self.source = source if start == "fresh" else pieces
        self.target = source if isinstance(source, str) else None
        self.pieces = pieces
        self.start = start
        self.at_once = at_once
        self.patience = patience
        self.say = say
        # Pieces alone are fed by a process that is forked with the pieces before them.
        self.can_feed = hasattr(os, "fork")
        self.notes = []
        self.said_at = time.monotonic()

    def note_threads(self):
        """Pieces that start threads when they are made would wait for them for ever in a forked process, which does not have them."""
        self.can_feed = False
        self.notes.append("the pieces start threads, which forked processes do not have: only callbacks were run alone")

    def run(self, examples, passes, seconds, begin):
        """All of it: the chains, the pieces alone, and a closer look at what grew."""
        present = self.pieces.present()
        length = length_of(self.pieces.dataset)
        counted = self._count(length, examples)
        chains, alone = self._plans(present, examples, passes)
        share = seconds * self.at_once / (len(chains) + len(alone) + 1)
        for plan in chains + alone:
            plan.seconds = share
        self.say(f"{counted} examples, {passes or 'several'} passes: {', '.join(plan.name for plan in chains + alone)}")
        # A chain has everything of the one before, and fails if that does.
        runs = [self._record(child) for child in self._run(chains, ends_with_failure=True)]
        failed = next((run for run in runs if run["error"]), None)
        if failed:
            sound = present[: len(failed["stages"]) - 1]
            self._leave_out(f"`{failed['name']}` failed", chains[len(runs) :] + [plan for plan in alone if plan.stages[-1] not in sound])
            alone = [plan for plan in alone if plan.stages[-1] in sound]
        if self.pieces.workers and not failed:
            plan = Plan(f"{self.pieces.workers} workers", ["workers"], "workers", self._for_workers(runs, examples), passes, share)
            runs += [self._record(child) for child in self._run([plan])]
        if length is None:
            counted = self._note_fewer(runs, examples)
        if any(run.get("same_example") for run in runs):
            self.notes.append("the dataset returns the same object for every index, which hides memory kept per new example; use different examples")
        grown = self._grown(runs)
        needed = {run["stages"][-1] for _, run in grown}
        if time.monotonic() - begin > seconds * 0.6:
            self._leave_out("time was short and nothing grew there", [plan for plan in alone if plan.stages[-1] not in needed])
            alone = [plan for plan in alone if plan.stages[-1] in needed]
        looks = self._looks([run for _, run in grown[:MOST_LOOKS]], examples, share)
        later = [self._record(child) for child in self._run(looks + alone)]
        return {
            "format": FORMAT,
            "version": 1,
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(time.monotonic() - begin, 3),
            "target": self.target,
            "start": self.start,
            "pieces": [{"name": name, "kind": kind} for name, kind in self.pieces.kinds().items()],
            "versions": versions(),
            "examples": counted,
            "asked": examples,
            "dataset_length": length,
            "batch_size": self.pieces.batch_size,
            "workers": self.pieces.workers,
            "passes": passes,
            "runs": runs + later[len(looks):],
            "looks": self._joined(later[: len(looks)]),
            "notes": self.notes,
        }

    def _leave_out(self, reason, plans):
        if plans:
            self.notes.append(f"skipped, as {reason}: {', '.join(plan.name for plan in plans)}")

    def _note_fewer(self, runs, examples):
        """An iterable dataset tells only by ending how many examples it has."""
        counted = min((run["examples"] for run in runs if run.get("examples") and run["how"] == "chain"), default=examples)
        if counted < examples:
            self.notes.append(f"{examples} examples requested; the dataset gave {counted} after the warm-up")
        return counted

    def _count(self, length, examples):
        if length is None:
            return examples
        _, counted = choose(length, examples, self.pieces.batch_size)
        if len(counted) < 4:
            raise BisectError(f"the dataset has {length} examples: too few to see growth per example\nhint: use 10 or more different ones; 60 is a good number")
        if len(counted) < examples:
            self.notes.append(f"{examples} examples requested; the dataset has {length}: {len(counted)} counted, {length - len(counted)} for the warm-up")
        return len(counted)

    def _plans(self, present, examples, passes):
        chains = []
        for last in range(len(present)):
            names = present[: last + 1]
            chains.append(Plan(" + ".join(names), names, "chain", examples, passes, 0))
        alone = [Plan(f"{name} alone", [name], "alone", examples, passes, 0) for name in present[1:] if name == "callbacks" or (self.can_feed and name in FED)]
        return chains, alone

    @staticmethod
    def _for_workers(runs, examples):
        """How many examples loader workers get, from what a pass of the same pieces took."""
        took = [run["passes"][0]["seconds"] for run in runs if run["passes"] and run["stages"][-1] in ("dataset", "processor", "collator")]
        times = WORKERS_S / max(took[-1], 1e-3) if took else 1
        return examples * max(1, min(MOST_TIMES, int(times)))

    @staticmethod
    def _grown(runs):
        """The chains that hold more than the one before them, the largest difference first."""
        before = 0
        grown = []
        for run in runs:
            if run["how"] != "chain" or len(run["passes"]) < 2:
                continue
            held = run["passes"][-1]["held"] - run["base"]["held"]
            if held - before > WORTH_A_LOOK:
                grown.append((held - before, run))
            before = max(before, held)
        return sorted(grown, key=lambda row: row[0], reverse=True)

    @staticmethod
    def _looks(grown, examples, share):
        """Two processes for each chain that grew: one that looks at what is alive, one that traces where it was allocated."""

        def passes(run):
            # One pass shows what holds a growth that only the first one has.
            return 1 if run["passes"][-1]["held"] - run["passes"][0]["held"] < WORTH_A_LOOK else 2

        # The same number for all, so that what an earlier piece holds can be taken off.
        most = max(map(passes, grown), default=1)
        return [Plan(run["name"], run["stages"], how, examples, most, share) for run in grown for how in ("look", "trace")]

    @staticmethod
    def _joined(looks):
        """What both processes of each chain found, as one."""
        joined = []
        for look, trace in zip(looks[::2], looks[1::2]):
            for part in ("holders", "later"):
                if look.get(part) and trace.get(part):
                    look[part].update(trace[part])
            look["error"] = look["error"] or trace["error"]
            joined.append(look)
        return joined

    def _run(self, plans, ends_with_failure=False):
        def on_message(plan, message):
            if "error" in message:
                self.say(f"{plan.name}: {_first_line(message['error']['text'])}")
            elif "pass_end" in message:
                if time.monotonic() - self.said_at > SPEECH_PAUSE_S:
                    self.said_at = time.monotonic()
                    self.say(f"{plan.name}: pass {message['pass_end']['pass']} took {message['pass_end']['seconds']:.1f} s")
            elif "collections" in message:
                self.say(f"{plan.name}: measured")
            elif "holders" in message and plan.how == "trace":
                self.say(f"{plan.name}: checked what holds memory")

        with ended_by_sigterm():
            return run_all(plans, self.source, self.start, self.at_once, self.patience, on_message, ends_with_failure)

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
                run["collections"] = message["collections"]
                run["same_example"] = message["same_example"]
                run["mappings"] = {kind: after.get(kind, 0) - mappings.get(kind, 0) for kind in sorted({*mappings, *after})}
            else:
                run.update({name: value for name, value in message.items() if name in ("error", "stopped", "holders", "later")})
        is_done = any("done" in message for message in child.messages)
        if not is_done and run["error"] is None:
            run["error"] = {"stage": child.plan.stages[-1], "kind": "ended", "text": f"its process {_end_words(child)}"}
        child.process.close()
        return run


def _first_line(text):
    return text.strip().splitlines()[0] if text.strip() else text


def _end_words(child):
    if child.process.code is not None and child.process.code < 0:
        name = signal.Signals(-child.process.code).name if -child.process.code in set(signal.Signals) else str(-child.process.code)
        hint = ": the kernel does this when memory runs out" if -child.process.code == signal.SIGKILL else ""
        how = f"was killed by signal {name}{hint}"
    else:
        how = f"exited with code {child.process.code} without a message"
    words = child.process.last_words()
    return how + (f"\n  its last output: {words.splitlines()[-1]}" if words else "")
