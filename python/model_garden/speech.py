"""What this package says: lines beside the program's own, and at most one warning per cause.

Nothing here may raise: a program must never fail because of who watches it.
"""
import sys

_warned = set()


def warn_once(cause, text):
    """Logs a warning, the first time that something goes wrong for this cause."""
    try:
        if cause in _warned:
            return
        _warned.add(cause)
        # `warnings.warn` would raise under `-W error`, and logging is what notebooks and launchers collect.
        import logging

        logging.getLogger("model_garden").warning("model-garden: %s", text)
    except Exception:
        pass


def say(line, file=None):
    """Prints a line without tearing a progress bar apart."""
    try:
        progress = sys.modules.get("tqdm")
        if progress is not None:
            progress.tqdm.write(line, file=file or sys.stdout)
        else:
            print(line, file=file or sys.stdout)
        (file or sys.stdout).flush()
    except Exception:
        pass
