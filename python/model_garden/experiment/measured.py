"""One measured process: the pieces are made, warmed up on examples that are not counted, and taken over the same examples several times.

Memory is read after each batch, and at the end of each pass once more after the C library was asked to give back what is free: what has grown by then
is held by somebody. The garbage collector is left alone until the end, when it is tried what gives memory back.
"""
import gc
import itertools
import os
import sys
import time
import traceback

from . import counters
from .pieces import build, load
from .stages import Alone, Chain, FeederError, StageError, Told, Workers

# Batches before the baseline: first calls load libraries, start threads and size buffers.
WARM_UP_BATCHES = 4
FEWEST_EXAMPLES = 4
MOST_PASSES = 24
# Cheap passes are repeated for so long, as they show what is small; where so much has grown after the first, they would only take memory.
LONG_ENOUGH_S = 3.0
GROWN_ENOUGH = 64 << 20
# A pass that grows by more than this, and by less than this share of the one before it, is the end of a cache or a leak behind one: the next tells.
MAY_BE_CHANCE = 192 << 10
FAR_LESS = 0.5
MOST_NEEDED = 6
# Memory is read exactly after each batch if that takes no longer than this: the kernel's running counters are off by some hundred KiB.
CHEAP_S = 0.01
# What looking at workers may take of the time.
SHARE_OF_TIME = 0.1
# A leak that would take the machine down is known well enough before.
LEAST_AVAILABLE = 512 << 20


class Plan:
    """What one process is to do. Everything here can be written as JSON."""

    def __init__(self, name, stages, how, examples, passes, seconds):
        self.name = name
        # The pieces that take part, and whether in a `chain`, one `alone`, in `workers`, or in a chain with a `look` at everything or a `trace` of it.
        self.stages = stages
        self.how = how
        self.examples = examples
        self.passes = passes
        # What the whole run may take. Without a number of passes there are as many as fit: two at least.
        self.seconds = seconds


def measure(plan, source, tell):
    """Runs the plan and tells what it finds, as dicts; what goes wrong is told too."""
    try:
        pieces = build(load(source) if isinstance(source, str) else source)
        _Run(plan, pieces, tell).through()
    except StageError as error:
        tell({"error": _stage_words(error)})
    except FeederError as error:
        tell({"error": {"stage": plan.stages[-1], "kind": "not_fed", "text": str(error)}})
    except MemoryError:
        tell({"error": {"stage": plan.stages[-1], "kind": "memory", "text": "out of memory"}})
    except Exception as error:
        tell({"error": {"stage": "pieces", "kind": "pieces", "text": words_of(error), "traceback": places_of(error)}})


def length_of(dataset):
    """The number of examples, or None if the dataset does not tell."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def choose(length, examples, batch_size):
    """The numbers of the examples to warm up with and of those to measure, all different: spread over the dataset."""
    warm_up = min(WARM_UP_BATCHES * batch_size, max(1, examples // 4))
    if length is None:
        total = warm_up + examples
        return list(range(warm_up)), list(range(warm_up, total))
    total = min(length, warm_up + examples)
    if total < warm_up + examples:
        warm_up = max(1, min(warm_up, total // 4))
    numbers = [place * length // total for place in range(total)]
    return numbers[:warm_up], numbers[warm_up:]


def batches_of(numbers, size):
    """Numbers in groups."""
    return [numbers[place : place + size] for place in range(0, len(numbers), size)]


class _Run:
    def __init__(self, plan, pieces, tell):
        self.plan = plan
        self.pieces = pieces
        self.tell = tell
        length = length_of(pieces.dataset)
        warm_up, counted = choose(length, plan.examples, pieces.batch_size)
        if length is None:
            counted = self._that_exist(warm_up, counted)
        if len(counted) < FEWEST_EXAMPLES:
            raise ValueError(f"the dataset has {len(warm_up) + len(counted)} examples; at least {FEWEST_EXAMPLES + 1} are needed, and more for a clear answer")
        self.warm_up = batches_of(warm_up, pieces.batch_size)
        self.batches = batches_of(counted, pieces.batch_size)
        self.examples = len(counted)
        self.stage = None
        self.begin = time.monotonic()
        self._walking_s = 0.0

    def _that_exist(self, warm_up, counted):
        last = counted[-1]
        found = 0
        for number, _ in enumerate(self.pieces.dataset):
            found = number + 1
            if number >= last:
                break
        return [number for number in counted if number < found]

    def through(self):
        """The whole run."""
        order = itertools.chain(self.warm_up, itertools.cycle(self.batches))
        if self.plan.how == "alone":
            self.stage = Alone(self.pieces, self.plan.stages[-1], order)
        elif self.plan.how == "workers":
            self.stage = Workers(self.pieces)
        else:
            self.stage = Chain(self.pieces, self.plan.stages)
        try:
            {"look": self._look, "trace": self._trace}.get(self.plan.how, self._measure)()
        finally:
            if hasattr(self.stage, "close"):
                self.stage.close()

    def _visit_all(self, batches, after):
        if isinstance(self.stage, Workers):
            self.stage.visit_all(batches, after)
            return
        for index, numbers in enumerate(batches):
            self.stage.visit(numbers)
            after(index)

    def _measure(self):
        self.tell({"begin": {"examples": self.examples, "batches": len(self.batches), "batch_size": self.pieces.batch_size}})
        self._visit_all(self.warm_up, lambda index: None)
        gc.collect()
        if isinstance(self.stage, Workers):
            self.stage.collect()
        self._trim()
        base = self._boundary()
        # In time of this process, which does not depend on what else the machine does.
        begin = time.process_time()
        counters.exact()
        self._read = counters.exact if time.process_time() - begin <= CHEAP_S else counters.quick
        self.tell({"base": base, "mappings": counters.mappings()})
        collections = _Collections()
        number = 0
        begin = time.monotonic()
        levels = [base["held"]]
        while self._wants_another(time.monotonic() - begin, levels):
            held = self._pass(number)
            if held is None:
                return
            levels.append(held)
            number += 1
        is_same = isinstance(self.stage, Chain) and self.stage.are_different is False
        self.tell({"end": {"mappings": counters.mappings()}, "collections": collections.end(), "same_example": is_same})
        self._try_what_gives_back()

    def _wants_another(self, taken, levels):
        """Two passes tell a cache from a leak, a third one from something slow; where they are cheap, more make small leaks visible.

        `levels` is what was held before the passes and after each. Where they leave the answer open, there is another one even if time is short.
        """
        done = len(levels) - 1
        if self.plan.passes is not None:
            return done < self.plan.passes
        if done < 2:
            return True
        before, last = levels[-2] - levels[-3], levels[-1] - levels[-2]
        if done < MOST_NEEDED and MAY_BE_CHANCE < last < FAR_LESS * before:
            return True
        each = taken / done
        most = self.plan.seconds - (time.monotonic() - self.begin)
        grown = levels[-1] - levels[1]
        return each <= most and (done < 3 or (done < MOST_PASSES and taken + each <= LONG_ENOUGH_S and grown < GROWN_ENOUGH))

    def _pass(self, number):
        """One pass; what is held after it, or None if it was stopped."""
        begin = time.monotonic()
        seen = 0

        def after(index):
            nonlocal seen
            seen += len(self.batches[index])
            held = self._read()
            place = {"pass": number + 1, "examples": seen, "held": held["held"], "file": held["file"], "allocated": counters.allocated()}
            if isinstance(self.stage, Workers):
                place["workers"] = self._workers_if_cheap()
            self.tell({"visit": place})
            left = counters.available()
            if left is not None and left < LEAST_AVAILABLE:
                raise _OutOfRoom(left)

        try:
            self._visit_all(self.batches, after)
        except _OutOfRoom as full:
            self.tell({"stopped": {"pass": number + 1, "examples": seen, "available": full.left}})
            return None
        before = counters.exact()
        self._trim()
        end = self._boundary()
        self.tell({"pass_end": {"pass": number + 1, "seconds": time.monotonic() - begin, "before_trim": before["held"], **end}})
        return end["held"]

    def _trim(self):
        counters.trim()
        if isinstance(self.stage, Workers):
            self.stage.trim()

    def _boundary(self):
        held = counters.exact()
        held["allocated"] = counters.allocated()
        held["blocks"] = sys.getallocatedblocks() if hasattr(sys, "getallocatedblocks") else None
        if isinstance(self.stage, Workers):
            held["workers"] = counters.workers(self.stage.pids())
        return held

    def _workers_if_cheap(self):
        """What workers hold, or None: a walk through their page tables may take longer than a batch."""
        begin = time.monotonic()
        if self._walking_s > SHARE_OF_TIME * (begin - self.begin):
            return None
        held = counters.workers(self.stage.pids())
        self._walking_s += time.monotonic() - begin
        return held

    def _try_what_gives_back(self):
        """Collects, empties caches and lets go of the pieces, one after the other, and tells what is held after each."""
        self._tell_given("gc.collect()", gc.collect)
        self._tell_given("releasing caches", release_caches)
        if isinstance(self.stage, Workers):
            return
        stage, self.stage = self.stage, None
        if hasattr(stage, "close"):
            stage.close()
        stage.pieces = None
        pieces, self.pieces = self.pieces, None
        for name in reversed(pieces.present()):
            setattr(pieces, name, None)
            self._tell_given(f"dropping the {name}", gc.collect)

    def _tell_given(self, what, action):
        found = action()
        gc.collect()
        counters.trim()
        self.tell({"after": {"what": what, "held": counters.exact()["held"], "found": found if isinstance(found, int) else None}})

    def _look(self):
        from .holders import Look

        self._visit_all(self.warm_up, lambda index: None)
        gc.collect()
        looks = self._passes_after(lambda: Look(self.pieces, self.stage.iterator()))
        self._tell_holders([look.end() for look in looks])

    def _trace(self):
        from .holders import Tracing

        # Before the warm-up: what that allocates may be freed in the passes, and must be known then.
        tracing = Tracing()
        self._visit_all(self.warm_up, lambda index: None)
        gc.collect()
        parts = self._passes_after(tracing.begin)
        self._tell_holders(tracing.end(parts))

    def _passes_after(self, begin):
        """Makes the passes; what `begin` gave before the first one and, where there are several, before the second."""
        begun = []
        for number in range(self.plan.passes):
            if number < 2:
                begun.append(begin())
            self._visit_all(self.batches, lambda index: None)
        return begun

    def _tell_holders(self, found):
        """Tells what was found over all passes, and over all but the first."""
        for number, (name, one) in enumerate(zip(("holders", "later"), found)):
            self.tell({name: {"examples": self.examples, "passes": self.plan.passes - number, **one}})


class _Collections:
    """What the garbage collector frees by itself meanwhile, as `malloc` sees it."""

    def __init__(self):
        self._before = None
        self.number = self.objects = self.bytes = self.largest = 0
        gc.callbacks.append(self._hear)

    def _hear(self, phase, told):
        if phase == "start":
            self._before = counters.allocated()
            return
        after = counters.allocated()
        self.number += 1
        self.objects += told.get("collected", 0)
        if told.get("collected") and self._before is not None and after is not None:
            freed = max(0, self._before - after)
            self.bytes += freed
            self.largest = max(self.largest, freed)

    def end(self):
        """The number of collections, what they found, and what the largest of them freed."""
        gc.callbacks.remove(self._hear)
        return {"number": self.number, "objects": self.objects, "bytes": self.bytes, "largest": self.largest}


class _OutOfRoom(Exception):
    def __init__(self, left):
        super().__init__()
        self.left = left


def release_caches():
    """Empties the caches that Python and torch would give up: functools', re's, linecache's, torch's on hosts and GPUs."""
    import functools
    import linecache
    import re

    emptied = 0
    kind = type(functools.lru_cache(maxsize=1)(len))
    for cache in [one for one in gc.get_objects() if type(one) is kind]:
        try:
            emptied += cache.cache_info().currsize > 0
            cache.cache_clear()
        except Exception:
            continue
    re.purge()
    linecache.clearcache()
    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
                torch._C._host_emptyCache()
        except Exception:
            pass
    return emptied


def versions():
    """The versions of what usually matters, as far as it is in use."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "transformers", "datasets", "PIL", "numpy", "trl", "unsloth"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def _stage_words(error):
    places = ", ".join(map(str, error.examples[:4]))
    return {
        "stage": error.stage,
        "kind": "raised",
        "examples": error.examples,
        "text": f"the {error.stage} raised at example {places}: {words_of(error.error)}" if len(error.examples) == 1 else f"the {error.stage} raised in the batch of examples {places}: {words_of(error.error)}",
        "traceback": places_of(error.error),
    }


def words_of(error):
    text = str(error).strip()
    if isinstance(error, Told):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def places_of(error):
    """Where it happened, in the user's own code."""
    here = os.path.dirname(os.path.abspath(__file__))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not os.path.abspath(frame.filename).startswith(here)]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames[-6:]]
