"""How a loop, or a function called after its steps, gets into another process: by the name it can be imported under, or by a fork."""
import importlib
import os
import sys

from ..experiment.pieces import PiecesError, load


def reference(function):
    """How a fresh interpreter finds a function: a list that can be written as JSON, or None if it cannot find it."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    if name is None or module is None or "<" in name:
        return None
    if module != "__main__":
        return ["module", module, name] if _resolved(sys.modules.get(module), name) is function else None
    main = sys.modules["__main__"]
    if _resolved(main, name) is not function:
        return None
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        # Started with `python -m`; a package's own `__main__` is imported under its full name.
        return ["module", spec.name, name]
    path = getattr(main, "__file__", None)
    return ["file", os.path.abspath(path), name] if path and os.path.isfile(path) else None


def _resolved(owner, name):
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner


def resolve(where):
    """The function that a reference names, in this process; "module:function" too. Raises `PiecesError` if there is none."""
    if isinstance(where, str):
        return load(where)
    if callable(where):
        return where
    kind, place, name = where
    if kind == "module":
        owner = importlib.import_module(place)
    else:
        owner = _script(place)
    function = _resolved(owner, name)
    if function is None:
        raise PiecesError(f"`{place}` has no `{name}` in a fresh process\nhint: define it at the top level of the module, whatever `__name__` is")
    return function


def _script(path):
    """A script as a module, without what stands behind `if __name__ == "__main__"`."""
    import types

    module = types.ModuleType("model_garden_trial_script")
    module.__file__ = path
    sys.modules[module.__name__] = module
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)
    return module
