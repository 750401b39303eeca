"""The processes of an experiment: each measures one plan, and several run at once."""
import json
import os
import pickle
import selectors
import sys
import time

from ..processes import GOODBYE_S, MeasuredProcess, environment_with_us
from .measured import Plan, measure


class Child:
    """One measured process and its messages."""

    def __init__(self, plan, source, start):
        self.plan = plan
        self.messages = []
        self.heard_at = time.monotonic()
        self.is_done = False
        self._rest = b""
        if start == "fork":
            self.process = MeasuredProcess.forked(lambda writing: work(plan, source, writing))
        else:
            self.process = _fresh(plan, source, start == "spawn")

    def hear(self):
        """Reads what has come; returns the new messages, and notes when there will be no more."""
        data = os.read(self.process.pipe, 1 << 16)
        self.heard_at = time.monotonic()
        if not data:
            self.is_done = True
            self.process.end(GOODBYE_S)
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        new = [json.loads(line) for line in lines]
        self.messages += new
        return new

    def kill(self):
        """Ends it and everything that it started."""
        if not self.is_done:
            self.is_done = True
            self.process.end()

    def has_failed(self):
        """Whether it told of an error, or ended without being done."""
        return any("error" in message for message in self.messages) or not any("done" in message for message in self.messages)


def _fresh(plan, source, is_pickled):
    order = pickle.dumps((vars(plan), pickle_pieces(source) if is_pickled else source, is_pickled))
    # What is unpickled may need modules that only this process knows the way to.
    return MeasuredProcess.fresh("model_garden.experiment", order, environment_with_us(sys.path if is_pickled else ()))


class PickleError(Exception):
    """A piece cannot be copied to another process; the text names it."""


def pickle_pieces(pieces):
    """Every piece as a pickle of its own, so that the one that cannot be pickled is known."""
    pickled = {}
    for name, piece in vars(pieces).items():
        try:
            pickled[name] = pickle.dumps(piece)
        except Exception as error:
            kind = type(piece).__qualname__
            raise PickleError(
                f"the {name} ({kind}) cannot be copied into a fresh process: {type(error).__name__}: {error}\n"
                "hint: pass a function that makes the pieces instead: `model_garden.bisect('module:function')`"
            ) from None
    return pickled


def work(plan, source, writing):
    """The life of a measured process."""
    pipe = os.fdopen(writing, "wb", buffering=0)

    def tell(message):
        pipe.write(json.dumps(message).encode() + b"\n")

    measure(plan, source, tell)
    tell({"done": True})
    pipe.close()


def child_main(writing):
    """The life of a process that was started afresh: its order comes from standard input."""
    from .counters import end_with_parent
    from .pieces import Pieces

    end_with_parent(os.getppid())
    values, source, is_pickled = pickle.loads(sys.stdin.buffer.read())
    if is_pickled:
        source = Pieces(**{name: pickle.loads(data) for name, data in source.items()})
    work(Plan(**values), source, writing)


def run_all(plans, source, start, at_once, patience, on_message, ends_with_failure=False):
    """Runs the plans, `at_once` of them at a time, and returns their processes in the same order. None of them is left when this returns or raises.

    With `ends_with_failure`, plans that have not begun when one of them fails are left out.
    """
    waiting = list(enumerate(plans))
    done = {}
    running = {}
    chooser = selectors.DefaultSelector()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                place, plan = waiting.pop(0)
                child = Child(plan, source, start)
                running[child.process.pipe] = (place, child)
                done[place] = child
                chooser.register(child.process.pipe, selectors.EVENT_READ)
            for key, _ in chooser.select(timeout=1.0):
                place, child = running[key.fd]
                for message in child.hear():
                    on_message(child.plan, message)
                if child.is_done:
                    # The number of the pipe is closed, and may be the next one's already.
                    chooser.unregister(key.fd)
                    del running[key.fd]
                    if ends_with_failure and child.has_failed():
                        waiting.clear()
            for pipe, (_, child) in list(running.items()):
                if time.monotonic() - child.heard_at > patience:
                    child.messages.append({"error": {"stage": child.plan.stages[-1], "kind": "silent", "text": f"no response for {patience:.0f} s"}})
                    chooser.unregister(pipe)
                    del running[pipe]
                    child.kill()
                    if ends_with_failure:
                        waiting.clear()
        return [done[place] for place in sorted(done)]
    finally:
        for _, child in running.values():
            child.kill()
            child.process.close()
        chooser.close()
