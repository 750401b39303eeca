"""`watch`: tells the memory of any loop, in two lines of it.

Under `model-garden monitor` or `run` the steps and events go to that watcher; otherwise a monitor is started for this process and its
verdict is printed at the end. Nothing here fails the program: what cannot be done is one warning.
"""
import os
import time
from contextlib import contextmanager

from .agreement import agree
from .events import ENVIRONMENT, Silence, connect
from .speech import say, warn_once

# A message costs ten microseconds, or a hundred where the watcher has to share our core. Steps are told as often as this share of the time
# allows, and ten times a second in any case: a watcher samples less often.
SHARE_OF_TIME = 0.001
SHORTEST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.1
LONGEST_SAMPLE_WAIT_S = 1.2


def watch(
    examples=None,
    batch_size=None,
    gradient_accumulation=None,
    steps_per_epoch=None,
    total_steps=None,
    report=None,
    *,
    memory_limit=None,
    trace=None,
    interval="1s",
    quiet=False,
):
    """Watches this process's memory for as long as the `with` block lasts.

        with model_garden.watch(examples=663, batch_size=2, gradient_accumulation=4) as run:
            for batch in loader:
                train(batch)
                run.step()
                if run.should_stop:
                    break

    The facts tell how long an epoch is, without which steady growth is never called a leak: `examples` with `batch_size` (over all
    processes) and `gradient_accumulation`, or `steps_per_epoch`. `memory_limit` is in bytes.

    Without a watcher around it, `trace` is where the trace goes (by default a new file in ~/.local/state/model-garden/traces), `interval` the time between samples,
    `report` a file for the full report, and `quiet` leaves everything unprinted.
    """
    facts = {
        "examples": examples,
        "batch_size": batch_size,
        "gradient_accumulation": gradient_accumulation,
        "steps_per_epoch": steps_per_epoch,
        "total_steps": total_steps,
        "memory_limit": memory_limit,
    }
    return Run(facts, report=report, trace=trace, interval=interval, quiet=quiet)


class Run:
    """A run that is watched, as `watch` gives it. Begins at once; `finish`, or the end of the `with` block, ends it."""

    def __init__(self, facts=None, *, report=None, trace=None, interval="1s", quiet=False, agrees=True):
        self.report = None
        self.current_step = 0
        self._report_path = report
        self._quiet = quiet
        self._monitor = None
        self._channel = Silence()
        self._told_at = 0.0
        self._pause_s = SHORTEST_PAUSE_S
        self._is_step_told = True
        self._owner = os.getpid()
        # Whoever counts the processes of the training itself decides together with them itself.
        self._must_agree = agrees
        self._agreement = None
        self.is_finished = False
        self._begin(trace, interval)
        self.tell_facts(**(facts or {}))
        # A loop that raises, or a notebook that is closed, still gets its verdict, and the monitor's folder is removed.
        import atexit

        atexit.register(self.finish)

    def _begin(self, trace, interval):
        path = os.environ.get(ENVIRONMENT)
        if path:
            self._channel = connect(path)
            return
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return  # the first process of this machine has a monitor, and one verdict is enough
        try:
            from .monitor import OwnMonitor

            self._monitor = OwnMonitor(trace, interval, None if self._quiet else self._say_news)
            self._channel = self._monitor.channel
        except Exception as error:
            warn_once("monitor", f"this run is not watched: {error}")

    @property
    def is_watched(self):
        """Whether somebody hears this run."""
        return self._channel.is_open

    @property
    def has_own_monitor(self):
        """Whether the monitor is one that was started for this run."""
        return self._monitor is not None

    @property
    def trace(self):
        """Where the trace of our own monitor is; None under somebody else's, which says it itself."""
        return self._monitor.trace if self._monitor else self.report.trace if self.report else None

    @property
    def is_asked_to_stop(self):
        """Whether `model-garden run` has asked this very process to save a checkpoint and end."""
        return self._channel.should_stop

    @property
    def should_stop(self):
        """Whether to save a checkpoint and end now, as memory runs out: ask at the end of each step.

        The processes of one torch.distributed training all hear it after the same step, up to two steps after one was asked.
        """
        try:
            if self._agreement is None:
                return self.is_asked_to_stop
            return self._agreement.should_stop(self.current_step, self.is_asked_to_stop)
        except Exception as error:
            warn_once("agreement", f"the processes cannot agree on a step to stop at: {error}")
            return False

    def tell_facts(self, **facts):
        """Tells what is known about the run: the arguments of `watch`. What is None, or no whole number, is left out."""
        known = {}
        for name, value in facts.items():
            try:
                if value is not None and int(value) >= 1:
                    known[name] = int(value)
            except (TypeError, ValueError, OverflowError):
                warn_once("facts", f"ignoring `{name}`, which is not a number: {value!r}")
        if known:
            self._channel.tell(facts=known)

    def step(self, step=None, **counts):
        """Tells that a step has ended: the next one, or the one with this number. `counts` may be tensors, objects, ..."""
        try:
            self.current_step = self.current_step + 1 if step is None else int(step)
        except (TypeError, ValueError, OverflowError):
            warn_once("step", f"ignoring a step that is not a number: {step!r}")
            return
        if self._must_agree:
            self._must_agree = False
            self._agreement = agree()  # by the first step all processes have found each other
        now = time.monotonic()
        if counts or now - self._told_at >= self._pause_s:
            self._told_at = now
            self._is_step_told = True
            self._channel.tell(step=self.current_step, **counts)
            took = time.monotonic() - now
            self._pause_s = min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, took / SHARE_OF_TIME))
        else:
            self._is_step_told = False

    def _event(self, event, **more):
        if self._is_step_told:
            self._channel.tell(event=event, **more)
        else:
            # It would otherwise be taken for an event of an earlier step.
            self._is_step_told = True
            self._channel.tell(step=self.current_step, event=event, **more)

    def epoch_end(self):
        """Tells that every example has been seen once more."""
        self._event("epoch_end")

    @contextmanager
    def evaluation(self):
        """An evaluation, whose memory is judged apart from that of the steps."""
        self.evaluation_start()
        try:
            yield self
        finally:
            self.evaluation_end()

    def evaluation_start(self):
        """Tells that an evaluation begins."""
        self._event("eval_start")

    def evaluation_end(self):
        """Tells that an evaluation has ended."""
        self._event("eval_end")

    def checkpoint(self, path=None):
        """Tells that a checkpoint was saved, and where: `run` looks for checkpoints beside it."""
        try:
            more = {} if path is None else {"path": os.path.abspath(os.fspath(path))}
        except TypeError:
            more = {}
            warn_once("checkpoint", f"ignoring a checkpoint path that is not a path: {path!r}")
        self._event("checkpoint", **more)

    def wait_for_sample(self):
        """Waits, a second at most, until our own monitor has taken one more sample."""
        if self._monitor is not None:
            time.sleep(min(LONGEST_SAMPLE_WAIT_S, 1.2 * self._monitor.interval_s))

    def finish(self):
        """Ends the watching. Our own monitor's report is printed in short and returned; None under somebody else's."""
        if self.is_finished or os.getpid() != self._owner:
            return self.report
        self.is_finished = True
        try:
            import atexit

            atexit.unregister(self.finish)
            if not self._is_step_told:
                self._channel.tell(step=self.current_step)
            if self._monitor is None:
                self._channel.close()
                return None
            self.report = self._monitor.finish()
            self._monitor = None
            self._keep_and_say()
        except Exception as error:
            warn_once("finish", f"cannot finish watching cleanly: {error}")
        return self.report

    def _keep_and_say(self):
        if self.report is None or not self.report.text:
            return
        if self._report_path:
            with open(self._report_path, "w", encoding="utf-8") as file:
                file.write(self.report.text)
        if not self._quiet:
            say(self.report.summary)
            say(f"trace: {self.report.trace} (full report: model-garden diagnose {self.report.trace})")

    def _say_news(self, text):
        # While a model is loaded every verdict is about the loading.
        if self.current_step > 0:
            say(f"model-garden: {text}")

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.finish()
        return False
