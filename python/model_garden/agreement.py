"""Several processes of one training agree on the step after which they stop.

If only one of them left the loop, the others would wait for it in their next collective for ever. They agree through the key-value
store that torch.distributed already has, which needs no collective of its own: a process without the callback cannot hang another one.
"""
import sys

from .speech import warn_once

# A process may have ended one step more than the one that proposes, and none can have ended two: that step needs all of them.
STEPS_AHEAD = 2

_trainings = 0


class Alone:
    """One process: it stops when it is asked to."""

    def should_stop(self, step, is_asked):
        """Whether to stop at the end of this step."""
        return is_asked


class Impossible:
    """Several processes without a way to agree: none of them stops, as one that did would hang the others."""

    def should_stop(self, step, is_asked):
        """Never."""
        if is_asked:
            warn_once("agreement", "asked to stop, but the processes of this training cannot agree on a step to stop at")
        return False


class Agreement:
    """All processes stop after the same step."""

    def __init__(self, store, processes):
        global _trainings
        _trainings += 1  # a second training in the same processes is another agreement
        self._store = store
        self._processes = processes
        self._present = f"model_garden/{_trainings}/present"
        self._key = f"model_garden/{_trainings}/stop"
        self._has_proposed = False
        self._stop_step = None
        store.add(self._present, 1)

    def should_stop(self, step, is_asked):
        """Whether to stop at the end of this step; proposes a step if this process was asked to stop."""
        if is_asked and not self._has_proposed:
            self._has_proposed = True
            self._propose(step + STEPS_AHEAD)
        if self._stop_step is None and self._store.check([self._key]):
            self._stop_step = int(self._store.get(self._key))
        return self._stop_step is not None and step >= self._stop_step

    def _propose(self, step):
        present = self._store.add(self._present, 0)
        if present < self._processes:
            warn_once(
                "agreement",
                f"asked to stop, but only {present} of {self._processes} processes have the callback: they cannot stop together. "
                "Add it on every rank.",
            )
            return
        # Only the first proposal counts.
        self._store.compare_set(self._key, "", str(step))


def agree(processes=None):
    """How this process decides to stop; `processes` is their number, if it is known."""
    try:
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        is_distributed = distributed is not None and distributed.is_available() and distributed.is_initialized()
        if processes is None:
            processes = distributed.get_world_size() if is_distributed else 1
        if processes <= 1:
            return Alone()
        if is_distributed:
            return Agreement(distributed.distributed_c10d._get_default_store(), processes)
    except Exception as error:
        warn_once("agreement", f"the processes of this training cannot agree on a step to stop at: {error}")
    return Impossible()
