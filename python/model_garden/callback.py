"""`MemoryMonitorCallback` for transformers.Trainer and what is built on it (TRL, Unsloth).

It tells the watcher around it, or one that it starts itself, the facts, steps, epochs, evaluations and checkpoints of the run; counts
tensors and objects; prints a line every few steps and a summary at the end; and when `model-garden run` asks for it, lets the
trainer save a checkpoint and end. Whatever goes wrong here is one warning, never the end of the training.
"""
import functools
import math
import os
import sys

from .agreement import Impossible, agree
from .counts import PacedCounter
from .memory import MIB, resident_bytes
from .speech import say, warn_once
from .summary import growth_summary
from .watch import Run


def _never_fails(hook):
    @functools.wraps(hook)
    def guarded(self, args=None, state=None, control=None, *more, **context):
        try:
            hook(self, args, state, control, **context)
        except Exception as error:
            warn_once("callback", f"{hook.__name__} failed ({type(error).__name__}: {error}); training continues")
        return control

    return guarded


class MemoryMonitorCallback:
    """Watches the memory of a training: `trainer.add_callback(MemoryMonitorCallback())`.

    every     print a line, and count tensors and objects, every so many steps
    count     whether to count at all; counting takes at most 0.2 % of the time, and what is left out is said
    trace     where our own monitor writes its trace (by default a new file in ~/.local/state/model-garden/traces); unused under `monitor` and `run`
    interval  the time between our own monitor's samples
    report    a file for our own monitor's full report
    quiet     print nothing
    """

    def __new__(cls, *arguments, **options):
        # Made a TrainerCallback here and not where the class is defined: importing transformers early would be slow, and
        # wrong for Unsloth, which has to be imported first. Whoever has a trainer has imported it by now.
        base = _trainer_callback()
        if base is not None and not issubclass(cls, base):
            cls = _subclass(cls, base)
        return object.__new__(cls)

    def __init__(self, every=10, count=True, trace=None, interval="1s", report=None, quiet=False):
        self._options = (every, count, trace, interval, report, quiet)
        try:
            self.every = max(1, int(every))
        except (TypeError, ValueError):
            self.every = 10
            warn_once("every", f"`every` is not a number ({every!r}); using 10")
        self.is_quiet = quiet
        self.run = None
        self._must_count = count
        self._counter = None
        self._agreement = None
        self._is_evaluating = False
        self._stopped_at = None
        self._saved_at = None
        self._start = None  # (step, resident bytes) after the first step
        self._end = None

    def __reduce__(self):
        # A copy in another process watches nothing yet.
        return (MemoryMonitorCallback, self._options)

    def __getattr__(self, name):
        # The trainer calls hooks by name, and new versions bring new ones.
        if name.startswith("on_"):
            return _do_nothing
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def verdict(self):
        """What our own monitor found, in one word; None before the end, or under somebody else's."""
        report = self.run.report if self.run else None
        return report.verdict if report else None

    @_never_fails
    def on_train_begin(self, args, state, control, train_dataloader=None, **context):
        processes = _number(args, "world_size") or 1
        self._agreement = agree(processes)
        self._stopped_at = self._saved_at = self._start = self._end = None
        if not getattr(state, "is_local_process_zero", True):
            return  # one process per machine speaks, all of them stop
        if self.run is None or self.run.is_finished:
            _, _, trace, interval, report, quiet = self._options
            self.run = Run(trace=trace, interval=interval, report=report, quiet=quiet, agrees=False)
        self.run.tell_facts(**run_facts(args, state, train_dataloader))
        if isinstance(self._agreement, Impossible):
            # `run` prefers to ask over the channel: better it finds another way than that it asks in vain.
            warn_once("agreement", f"{processes} processes cannot agree on a step to stop at: a stop would hang them")
            self.run.finish()
        if self._must_count:
            self._counter = PacedCounter(_number(state, "global_step") or 0)
            self.run.step(self._counter.last.step, **self._counter.last.message)

    @_never_fails
    def on_step_end(self, args, state, control, **context):
        step = _number(state, "global_step")
        if self.run is not None and step is not None:
            self._tell_step(step)
        is_asked = self.run is not None and self.run.is_asked_to_stop
        if self._agreement is not None and self._agreement.should_stop(step or 0, is_asked):
            self._stop(step, control)

    def _tell_step(self, step):
        if self._start is None:
            self._start = (step, resident_bytes())
        if step % self.every:
            self.run.step(step)
            return
        counted = self._counter.count_if_due(step) if self._counter is not None else None
        self.run.step(step, **(counted.message if counted else {}))
        if not self.is_quiet:
            say(self._line(step, counted))

    def _line(self, step, counted):
        resident = resident_bytes()
        memory = "RAM: unknown" if resident is None else f"RAM: {round(resident / MIB)} MiB"
        if counted is not None:
            return f"Step {step}: {counted.tensors} tensors (CPU: {counted.tensors_cpu}, GPU: {counted.tensors_gpu}), {memory}"
        if self._counter is None:
            return f"Step {step}: {memory}"
        # A count that is not due is left out rather than repeated.
        return f"Step {step}: {memory} (tensors are counted every {math.ceil(self._counter.pause_s)} s at most)"

    def _stop(self, step, control):
        if self._stopped_at is None and self.run is not None:
            if not self.is_quiet:
                say(f"Step {step}: asked to stop before memory runs out; saving a checkpoint")
            if self._counter is not None:
                # The save gives the watcher time to note what there was at the end of the growth.
                self.run.step(step, **self._counter.count_now(step).message)
        self._stopped_at = step
        control.should_save = True
        control.should_training_stop = True
        # The trainer would evaluate before it saves, and memory is short.
        control.should_evaluate = False

    @_never_fails
    def on_epoch_end(self, args, state, control, **context):
        if self._stopped_at is None:
            if self.run is not None:
                self.run.epoch_end()
            return
        # The trainer comes by here also when it stops in the middle of an epoch, and would evaluate, or save the same step twice.
        control.should_evaluate = False
        if self._saved_at == self._stopped_at:
            control.should_save = False

    @_never_fails
    def on_prediction_step(self, args, state, control, **context):
        # There is no hook for the beginning of an evaluation; its first batch is the next best.
        if self.run is not None and not self._is_evaluating:
            self._is_evaluating = True
            self.run.evaluation_start()

    @_never_fails
    def on_evaluate(self, args, state, control, **context):
        if self.run is not None and self._is_evaluating:
            self._is_evaluating = False
            self.run.evaluation_end()

    on_predict = on_evaluate

    @_never_fails
    def on_save(self, args, state, control, **context):
        step = self._saved_at = _number(state, "global_step")
        if self.run is not None:
            self.run.checkpoint(os.path.join(args.output_dir, f"checkpoint-{step}"))

    @_never_fails
    def on_train_end(self, args, state, control, **context):
        if self.run is None or self.run.is_finished:
            return
        try:
            step = _number(state, "global_step") or 0
            self._end = (step, resident_bytes())
            share = self._counter.share_spent() if self._counter is not None else 0.0
            if self._counter is not None:
                self._counter.count_now(step, with_types=True)
                self.run.step(step, **self._counter.last.message)
                # Counts are noted with the next sample; without this one a short run would seem to have had constant counts.
                self.run.wait_for_sample()
            if not self.is_quiet:
                is_judged = self.run.has_own_monitor or bool(os.environ.get("MODEL_GARDEN_EVENTS"))
                summary = growth_summary(self._start, self._end, self._counter, share, is_judged)
                if summary:
                    say(summary)
        finally:
            self.run.finish()
        if not self.run.report and not self.is_quiet and os.environ.get("MODEL_GARDEN_EVENTS"):
            say("The `model-garden` watching this run prints the verdict.")


def run_facts(args, state, dataloader):
    """What a trainer knows about its run, as the facts of the event channel."""
    processes = _number(args, "world_size") or 1
    accumulation = _number(args, "gradient_accumulation_steps") or 1
    per_process = _number(args, "train_batch_size") or _number(args, "per_device_train_batch_size")
    # The dataloader knows best: with `auto_find_batch_size` the arguments are no longer true.
    batch_size = _number(dataloader, "total_batch_size") or (per_process * processes if per_process else None)
    batches = _length(dataloader)
    return {
        "examples": _length(getattr(dataloader, "dataset", None)),
        "batch_size": batch_size,
        "gradient_accumulation": accumulation,
        "steps_per_epoch": math.ceil(batches / accumulation) if batches else None,
        "total_steps": _number(state, "max_steps"),
    }


def _number(thing, name):
    """A whole number that something may have as an attribute."""
    try:
        value = getattr(thing, name, None)
        return None if value is None or isinstance(value, bool) else int(value)
    except Exception:
        return None


def _length(thing):
    try:
        return len(thing)
    except Exception:  # a stream has none, and some raise whatever they like
        return None


def _do_nothing(args=None, state=None, control=None, *more, **context):
    return control


def _trainer_callback():
    """transformers' TrainerCallback, if transformers has been imported."""
    try:
        return sys.modules["transformers"].TrainerCallback
    except Exception:
        return None


@functools.lru_cache(maxsize=None)
def _subclass(cls, base):
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__, "__doc__": cls.__doc__})
