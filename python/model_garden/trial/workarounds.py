"""What a user may ask for: workarounds by name, and what each of them does."""
import ast
import gc

from ..audit import AuditError, Workaround
from ..experiment import counters

# Steps after which "subprocess" replaces the process, unless told.
PROCESS_EVERY = 10


def _empty_cache():
    import torch

    torch.cuda.empty_cache()


ACTIONS = {"gc.collect": gc.collect, "malloc_trim": counters.trim, "empty_cache": _empty_cache}
KNOWN = (
    "gc.collect, gc.collect/10, malloc_trim, empty_cache, subprocess, subprocess/20, "
    "a loop setting such as num_workers=0, an environment variable such as MALLOC_ARENA_MAX=2"
)


def understand(given):
    """The workarounds that were asked for, each as a `Workaround` with a name of its own."""
    if isinstance(given, (str, Workaround)) or callable(given):
        given = [given]
    found = [_understand_one(one) for one in given]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise AuditError(f"the workaround `{name}` is given twice\nhint: pass each once, or `Workaround(name, ...)` with another name")
    return found


def _understand_one(given):
    if isinstance(given, Workaround):
        return _checked(given)
    if callable(given):
        return Workaround(f"{_called(given)} every step", after_step=given)
    if not isinstance(given, str):
        raise AuditError(f"{given!r} is not a workaround\nhint: pass a name, a function or `Workaround(...)`; known names: {KNOWN}")
    name, equals, value = given.partition("=")
    if equals:
        return _assignment(name.strip(), value.strip(), given)
    return _action(given)


def _checked(given):
    if given.after_step is not None and not callable(given.after_step) and given.after_step not in ACTIONS:
        raise AuditError(f"`after_step` of the workaround `{given.name}` is {given.after_step!r}, which is not callable")
    for setting, number in (("every", given.every), ("process_every", given.process_every)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise AuditError(f"`{setting}` of the workaround `{given.name}` is {number!r}; expected a whole number of at least 1")
    return given


def _assignment(name, value, given):
    if not name.isidentifier():
        raise AuditError(f"unknown workaround `{given}`\nhint: use {KNOWN}")
    if name.upper() == name:
        return Workaround(given, environment={name: value})
    return Workaround(given, settings=dict([setting(given)]))


def setting(text):
    """The name and the value of a setting such as `num_workers=0`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier():
        raise AuditError(f"`{text}` is not a setting\nhint: write NAME=VALUE, for example num_workers=0")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a text without quotes


def _action(given):
    name, slash, number = given.partition("/")
    every = int(number) if slash and number.isdigit() and int(number) > 0 else None
    if (slash and every is None) or (name not in ACTIONS and name != "subprocess"):
        raise AuditError(f"unknown workaround `{given}`\nhint: use {KNOWN}; your own function; or `Workaround(...)`")
    if name == "subprocess":
        every = every or PROCESS_EVERY
        return Workaround(f"a fresh process every {every} steps", process_every=every)
    return Workaround(f"{name} every step" if (every or 1) == 1 else f"{name} every {every} steps", after_step=name, every=every or 1)


def _called(function):
    return getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")
