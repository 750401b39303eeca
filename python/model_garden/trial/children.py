"""One run of an audit: started, heard to its end, and never left behind."""
import json
import os
import select
import signal
import subprocess
import sys
import time

from ..processes import GOODBYE_S, MeasuredProcess, environment_with_us
from .run import Trouble, speak

# Tells a program that is run again for one of its functions that it is.
INSIDE = "MODEL_GARDEN_TRIAL"
# How often a silent run is looked at.
GLANCE_S = 0.5


def carry_out(order, start, environment, patience):
    """Makes one run and returns its last message. Raises `Trouble` if it fails; nothing of it is left when this returns or raises."""
    process = MeasuredProcess.forked(lambda writing: _inside(order, writing)) if start == "fork" else _fresh(order, environment)
    last = None
    is_heard = False
    try:
        last = _hear(process, patience)
        is_heard = True
    finally:
        # Without a last message its exit code is all there is to go by.
        code = process.end(GOODBYE_S if is_heard and last is None else 0.0)
        said = process.last_words()
        process.close()
    if last is None:
        raise Trouble(_silence(code, said))
    if "error" in last:
        raise Trouble(last["error"], last["places"])
    return last


def _inside(order, writing):
    os.environ[INSIDE] = "1"
    speak(writing, order)


def _fresh(order, environment):
    data = json.dumps({**order, "parent": os.getpid(), "path": sys.path}).encode()
    # With the switches of this interpreter.
    flags = subprocess._args_from_interpreter_flags()
    return MeasuredProcess.fresh("model_garden.trial", data, {**environment_with_us(), **environment, INSIDE: "1"}, flags)


def _hear(process, patience):
    """The message that ends the run; None if it ended without one.

    Not until the pipe is closed: what the loop has forked may hold it open for ever.
    """
    rest, heard_at = b"", time.monotonic()
    while True:
        if not select.select([process.pipe], [], [], GLANCE_S)[0]:
            if process.has_ended():
                return None
            if time.monotonic() - heard_at > patience:
                raise Trouble(f"no step finished for {patience:.0f} s\nhint: raise `patience` if a step may take that long")
            continue
        data = os.read(process.pipe, 1 << 16)
        if not data:
            return None
        heard_at = time.monotonic()
        *lines, rest = (rest + data).split(b"\n")
        for message in map(json.loads, lines):
            if "done" in message or "error" in message:
                return message


def _silence(code, said):
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    hint = "\nhint: SIGKILL often means that memory ran out: use fewer `steps` or a smaller loop" if code == -signal.SIGKILL else ""
    return f"the run ended without a message ({how})" + (f"; its last output:\n{said}" if said else "") + hint
