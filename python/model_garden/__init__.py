"""Tells the truth about the memory of training runs.

`MemoryMonitorCallback` for transformers.Trainer, TRL and Unsloth; `watch` for any other loop; `bisect` finds the piece that makes memory grow;
`audit` tries workarounds; `LazyImages` for datasets of images;
`find_binary` and `python -m model_garden` for the command line. Importing this imports neither torch nor transformers, and costs
a few milliseconds: what is heavier is imported when it is first used.
"""

# A function that is named like its module is imported here at once: otherwise the first import of the module, from anywhere,
# would put the module in the function's place. Such a module must be light.
from .audit import Audit, AuditError, Workaround, audit
from .binary import BinaryNotFound, find_binary
from .bisect import bisect
from .watch import watch

__all__ = [
    "Audit",
    "AuditError",
    "BinaryNotFound",
    "BisectError",
    "LazyImages",
    "MemoryMonitorCallback",
    "Workaround",
    "audit",
    "bisect",
    "find_binary",
    "watch",
]

_LAZY = {
    "BisectError": "experiment.conduct",
    "LazyImages": "images",
    "MemoryMonitorCallback": "callback",
}


def __getattr__(name):
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module("." + _LAZY[name], __name__), name)
    elif name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value = version("model-garden")
        except PackageNotFoundError:
            value = "unknown"  # run from a source tree
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__) | {"__version__"})
