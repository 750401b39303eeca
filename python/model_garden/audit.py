"""`model_garden.audit`: does a workaround change the growth of memory, and what does it cost? Tried on your own loop, in short interleaved runs."""

__all__ = ["Audit", "AuditError", "Workaround", "audit"]


class AuditError(Exception):
    """The audit could not be made; the text says why, with a hint."""


class Workaround:
    """Something to try: a function called after every so many steps, settings of the loop, environment variables, or another process.

    `Workaround("drop caches", after_step=drop, every=5)`, `Workaround("no workers", settings={"num_workers": 0})`,
    `Workaround("one arena", environment={"MALLOC_ARENA_MAX": "1"})`, `Workaround("fresh processes", process_every=20)`.
    """

    def __init__(self, name, after_step=None, every=1, settings=None, environment=None, process_every=None):
        self.name = name
        self.after_step = after_step
        self.every = every
        self.settings = dict(settings or {})
        self.environment = {key: str(value) for key, value in (environment or {}).items()}
        self.process_every = process_every


class Audit:
    """What was found: `text` for people, `data` for scripts, `html(path)` for a page; printing it prints the text."""

    def __init__(self, text, data, judge, folder):
        self.text = text
        self.data = data
        self._judge = judge
        # The traces; they are removed with this object unless the caller named a folder for them.
        self._folder = folder

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"<Audit: {self.data['summary']}>"

    def html(self, path):
        """Writes a page with charts that works offline, and returns its path."""
        self._judge("html", path)
        return path


def audit(loop, workarounds=(), steps=60, rounds=3, warm_up=None, settings=None, start="auto", patience=300.0, record=None, report=None, quiet=False):
    """Tries workarounds on a loop and says of each whether it changes the growth of memory, and what it costs in step time.

    `loop` is a generator function of which each `yield` ends a step, or "module:function"; it may have keyword arguments, which `settings` and
    workarounds such as "num_workers=0" set. Workarounds: "gc.collect", "gc.collect/10" (every tenth step), "malloc_trim", "empty_cache",
    "subprocess" or "subprocess/20" (a fresh process every so many steps), "NAME=value" (a setting of the loop, or an environment variable if it
    is written in capitals), a function that is called after each step, or a `Workaround`.

    Each run is a process of its own with `warm_up` steps (a fifth of `steps` unless told) that do not count and `steps` that do; all kinds of runs take turns, `rounds`
    times. `start` is "fresh" (a new interpreter), "fork", or "auto": fresh wherever the loop can be imported there. A run that takes no step for
    `patience` seconds is ended. `record` names a folder to keep the traces in, `report` a file for a page with charts. Raises `AuditError` if it cannot be done.
    """
    from .trial.conduct import conduct

    return conduct(loop, workarounds, steps, rounds, warm_up, settings, start, patience, record, report, quiet)
