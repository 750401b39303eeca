"""Which runs are needed, in which order, and what the binary says about their traces."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref

from ..audit import Audit, AuditError
from ..binary import BinaryNotFound, find_binary
from ..experiment import counters
from ..processes import ended_by_sigterm, uses_cuda, write_json
from .children import INSIDE, carry_out
from .loops import reference
from .run import Trouble
from .workarounds import understand

FORMAT = 1
MANIFEST = "audit.json"
# Below this no slope is worth the name.
FEWEST_STEPS = 10
FEWEST_ROUNDS = 2
BASELINE = "baseline"


def conduct(loop, workarounds, steps, rounds, warm_up, settings, start, patience, record, report, quiet):
    """Makes all runs, and the `Audit` of them."""
    try:
        binary = find_binary()
    except BinaryNotFound as error:
        raise AuditError(str(error)) from None
    folder = _recorded(loop, workarounds, steps, rounds, warm_up, settings, start, patience, record, _silent if quiet else _say)
    judge = _Judge(binary, folder.path)
    audit = Audit(judge("text"), json.loads(judge("json")), judge, folder)
    if report is not None:
        audit.html(report)
    if not quiet:
        print(audit, end="", flush=True)
    return audit


def record(loop, workarounds, steps, rounds, warm_up, settings, start, patience, folder):
    """Makes all runs and leaves their record in a folder, for the binary to judge."""
    _recorded(loop, workarounds, steps, rounds, warm_up, settings, start, patience, folder, _say)


def _recorded(loop, workarounds, steps, rounds, warm_up, settings, start, patience, record, say):
    warm_up = max(2, steps // 5) if warm_up is None else warm_up
    _check(steps, rounds, warm_up)
    given = [workarounds] if isinstance(workarounds, str) else workarounds
    workarounds = understand(workarounds)
    if not workarounds:
        raise AuditError('no workaround to try\nhint: pass `workarounds=["gc.collect", "malloc_trim"]`')
    command = _command(loop, given, settings or {}, steps, rounds, warm_up)
    experiment = _Experiment(loop, workarounds, steps, rounds, warm_up, settings or {}, start, patience, command)
    folder = _Folder(record)
    experiment.run(folder.path, say)
    return folder


def _command(loop, workarounds, settings, steps, rounds, warm_up):
    """The command line that does the same, or None if there is none."""
    import shlex

    try:
        words = [loop, *(word for one in workarounds for word in ("--workaround", one))]
        words += [word for name, value in settings.items() for word in ("--setting", f"{name}={value!r}")]
        words += ["--steps", str(steps), "--rounds", str(rounds), "--warm-up", str(warm_up)]
        return "model-garden audit " + " ".join(map(shlex.quote, words))
    except TypeError:
        return None  # a function has no name there


def _check(steps, rounds, warm_up):
    """Finds what cannot work before anything runs."""
    if os.environ.get(INSIDE):
        raise AuditError('an audit started while one of its own runs imports this file\nhint: call `audit` under `if __name__ == "__main__":`')
    reason = counters.why_not()
    if reason:
        raise AuditError(reason)
    if not isinstance(steps, int) or steps < FEWEST_STEPS:
        raise AuditError(f"`steps` is {steps!r}: too few to see growth\nhint: 60 is a good number, {FEWEST_STEPS} the minimum")
    if not isinstance(rounds, int) or rounds < FEWEST_ROUNDS:
        raise AuditError(f"`rounds` is {rounds!r}: one run of each kind does not show how much runs differ\nhint: use at least 2; 3 or 5 is better")
    if not isinstance(warm_up, int) or warm_up < 0:
        raise AuditError(f"`warm_up` is {warm_up!r}; expected a number of steps")


def _say(text):
    print(f"model-garden: {text}", file=sys.stderr, flush=True)


def _silent(text):
    pass


class _Folder:
    """Where the traces are: a folder that was named and stays, or one that goes with this object."""

    def __init__(self, named):
        if named is None:
            self.path = tempfile.mkdtemp(prefix="model-garden-audit-")
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
            return
        self.path = os.path.abspath(os.fspath(named))
        os.makedirs(self.path, exist_ok=True)
        if os.path.exists(os.path.join(self.path, MANIFEST)):
            raise AuditError(f"`{named}` holds the record of another audit\nhint: use an empty folder")


class _Judge:
    """The binary, which judges what was recorded."""

    def __init__(self, binary, folder):
        self.binary = binary
        self.folder = folder

    def __call__(self, form, path=None):
        command = [self.binary, "audit", self.folder, "--format", form]
        if path is not None:
            command += ["-o", os.fspath(path)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Too few samples is an answer too, and the text says so.
        if done.returncode not in (0, 3):
            raise AuditError(f"the binary cannot judge the runs: {done.stderr.decode('utf-8', 'replace').strip()}")
        return done.stdout.decode("utf-8")


class _Experiment:
    def __init__(self, loop, workarounds, steps, rounds, warm_up, settings, start, patience, command):
        self.command = command
        self.workarounds = workarounds
        self.steps, self.rounds, self.warm_up = steps, rounds, warm_up
        self.settings = settings
        self.patience = patience
        self.title = loop if isinstance(loop, str) else getattr(loop, "__qualname__", type(loop).__name__)
        self.start, self.places = self._way_in(loop, start)
        # Everything that any kind of run needs, so that the first one finds what is missing.
        self.known_settings = sorted({name for one in workarounds for name in one.settings} | set(settings))
        self.known_actions = sorted({one.after_step for one in workarounds if isinstance(one.after_step, str)})
        self.versions = {}

    def _way_in(self, loop, start):
        """How runs are started, and how each finds the loop and the functions called after its steps."""
        if start not in ("auto", "fresh", "fork"):
            raise AuditError(f"`start` is {start!r}; use auto, fresh or fork")
        given = {None: loop, **{one.name: one.after_step for one in self.workarounds if callable(one.after_step)}}
        if not isinstance(loop, str) and not callable(loop):
            raise AuditError(f"the loop is a {type(loop).__name__}\nhint: pass a generator function, or 'module:function'")
        found = {name: one if isinstance(one, str) else reference(one) for name, one in given.items()}
        hidden = [name for name, where in found.items() if where is None]
        if not hidden and start != "fork":
            return "fresh", found
        what = "the loop" if None in hidden else f"the function of the workaround `{hidden[0]}`" if hidden else "it"
        why = f"{what} is defined where a fresh interpreter cannot import it (inside another function, in a notebook, or as a lambda)"
        if start == "fresh":
            raise AuditError(f"{why}\nhint: move it to the top level of a module or of this script")
        bound = next((one for one in self.workarounds if one.environment), None)
        if bound is not None:
            reason = why if hidden else "`start` is fork"
            raise AuditError(
                f"`{bound.name}` is read when a process starts, so it needs a fresh interpreter, but {reason}\n"
                "hint: move it to the top level of a module or of this script"
            )
        if not hasattr(os, "fork"):
            raise AuditError(f"{why}, and this system cannot fork\nhint: move it to the top level of a module")
        if uses_cuda():
            raise AuditError(f"{why}, and this process uses CUDA, which does not survive a fork\nhint: move it to the top level of a module")
        return "fork", given

    def run(self, folder, say):
        """Makes all runs, kinds taking turns in an order that moves on by one each round, and writes down what there is."""
        kinds = [None, *self.workarounds]
        traces = {_name(kind): [] for kind in kinds}
        with ended_by_sigterm():
            for turn in range(self.rounds):
                for place in range(len(kinds)):
                    kind = kinds[(place + turn) % len(kinds)]
                    say(f"round {turn + 1} of {self.rounds}: {'baseline' if kind is None else kind.name}")
                    number = (place + turn) % len(kinds)
                    name = f"{BASELINE if kind is None else f'workaround-{number}'}-{turn + 1}.jsonl"
                    self._one(kind, os.path.join(folder, name))
                    traces[_name(kind)].append(name)
        self._write(folder, traces)

    def _one(self, kind, trace):
        after_step = None if kind is None else self.places.get(kind.name, kind.after_step)
        order = {
            "name": _name(kind),
            "loop": self.places[None],
            "settings": {**self.settings, **(kind.settings if kind else {})},
            "after_step": after_step,
            "every": kind.every if kind else 1,
            "process_every": kind.process_every if kind else None,
            "known_settings": self.known_settings,
            "known_actions": self.known_actions,
            "steps": self.steps,
            "warm_up": self.warm_up,
            "trace": trace,
            "origin": {"loop": self.title, "workaround": _name(kind)},
        }
        try:
            done = carry_out(order, self.start, kind.environment if kind else {}, self.patience)
        except Trouble as trouble:
            where = "".join(f"\n  at {place}" for place in trouble.places[-1:])
            about = "" if kind is None else f" (with `{kind.name}`)"
            text, newline, hint = str(trouble).partition("\n")
            raise AuditError(f"{text}{about}{where}{newline}{hint}") from None
        except (TypeError, ValueError) as error:
            # Only what can be written as JSON reaches a fresh interpreter.
            raise AuditError(f"a setting cannot be passed to a fresh interpreter: {error}\nhint: use numbers, strings, lists and dicts") from None
        self.versions = done["versions"]

    def _write(self, folder, traces):
        manifest = {
            "model_garden_audit": FORMAT,
            "loop": self.title,
            "command": self.command,
            "steps": self.steps,
            "warm_up": self.warm_up,
            "rounds": self.rounds,
            "origin": {**self.versions, "processes": "fresh interpreters" if self.start == "fresh" else "forked"},
            "baseline": traces[BASELINE],
            "workarounds": [{"name": one.name, "traces": traces[one.name]} for one in self.workarounds],
        }
        write_json(manifest, os.path.join(folder, MANIFEST), indent=1)


def _name(kind):
    return BASELINE if kind is None else kind.name
