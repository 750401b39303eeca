"""Counts of live tensors and Python objects, and what grew between two counts.

Counting means a walk through everything that the garbage collector tracks: tens of milliseconds in a real training process, which
is far more than anything else that is done per step. So each count is timed, and the next one waits until the time that it will
take is a small share of the time that has passed.

What the collector does not track is not seen: numbers, strings, bytes, arrays of plain numbers, and what `gc.freeze` has put aside.
"""
import gc
import sys
import time
from collections import Counter
from itertools import compress

# Together with a line every few steps and a message per step this stays below half a percent of the time.
SHARE_OF_TIME = 0.002
LARGEST_SHOWN = 5
# Asking a tensor for its storage makes an object that lives as long as the tensor: they are our own doing.
MADE_BY_COUNTING = "torch.storage.UntypedStorage"


class Count:
    """What was alive at one moment: objects by type, tensors by shape, dtype and device."""

    def __init__(self, step, objects, objects_by_type, tensors, seconds):
        self.step = step
        self.seconds = seconds
        self.objects = objects
        self.objects_by_type = objects_by_type
        # (shape, dtype, device) -> (how many, bytes)
        self.tensors_by_kind = tensors.by_kind
        self.tensors_cpu = tensors.cpu
        self.tensors_gpu = tensors.gpu
        self.tensors = tensors.cpu + tensors.gpu + tensors.elsewhere
        self.bytes_cpu = tensors.bytes_cpu
        self.bytes_gpu = tensors.bytes_gpu

    @property
    def message(self):
        """The fields of a message on the event channel. A sample is taken with it: what was counted belongs to this moment."""
        message = {"objects": self.objects, "sample": True}
        if "torch" in sys.modules:
            message.update(tensors=self.tensors, tensors_cpu=self.tensors_cpu, tensors_gpu=self.tensors_gpu)
        return message

    def largest_tensors(self, most=LARGEST_SHOWN):
        """The kinds of tensors that hold the most: (bytes, how many, shape, dtype, device)."""
        held = [(size, number, *kind) for kind, (number, size) in self.tensors_by_kind.items()]
        return sorted(held, key=lambda row: row[0], reverse=True)[:most]

    def grown_types(self, earlier, most=LARGEST_SHOWN):
        """The types of objects of which there are more than earlier: (how many more, name)."""
        grown = [(number - earlier.objects_by_type.get(kind, 0), kind) for kind, number in self.objects_by_type.items()]
        grown = [(more, kind) for more, kind in grown if more > 0 and kind != MADE_BY_COUNTING]
        return sorted(grown, key=lambda row: row[0], reverse=True)[:most]

    def grown_tensors(self, earlier, most=LARGEST_SHOWN):
        """The kinds of tensors that hold more than earlier: (bytes more, how many more, shape, dtype, device)."""
        grown = []
        for kind, (number, size) in self.tensors_by_kind.items():
            before_number, before_size = earlier.tensors_by_kind.get(kind, (0, 0))
            if number > before_number:
                grown.append((size - before_size, number - before_number, *kind))
        return sorted(grown, key=lambda row: row[:2], reverse=True)[:most]


class _Tensors:
    """Tensors as they are met; a storage that several of them share is counted once in bytes."""

    def __init__(self):
        self.cpu = self.gpu = self.elsewhere = 0
        self.bytes_cpu = self.bytes_gpu = 0
        self._by_kind = {}
        self._storages = set()

    def add(self, tensor):
        # This runs once per tensor, thousands of times: names are made afterwards, once per kind.
        device = tensor.device
        storage = tensor.untyped_storage()
        where = storage.data_ptr()
        size = 0 if where in self._storages else storage.nbytes()
        self._storages.add(where)
        place = device.type
        if place == "cpu":
            self.cpu += 1
            self.bytes_cpu += size
        elif place == "meta":
            self.elsewhere += 1
            size = 0  # it has a shape and no memory
        else:
            self.gpu += 1
            self.bytes_gpu += size
        kind = (tensor.shape, tensor.dtype, device)
        entry = self._by_kind.get(kind)
        if entry is None:
            self._by_kind[kind] = [1, size]
        else:
            entry[0] += 1
            entry[1] += size

    @property
    def by_kind(self):
        named = {}
        for (shape, dtype, device), (number, size) in self._by_kind.items():
            named[tuple(shape), str(dtype).replace("torch.", ""), str(device)] = (number, size)
        return named


def count(step=0, with_types=True):
    """Counts what is alive now, and keeps none of it alive. Without types it takes half the time."""
    begin = time.perf_counter()
    alive = gc.get_objects()
    number = len(alive)
    tensors = _count_tensors(alive)
    types = Counter(map(type, alive)) if with_types else {}
    del alive
    named = Counter()
    for kind, times in types.items():
        named[_name(kind)] += times
    return Count(step, number, named, tensors, time.perf_counter() - begin)


def _count_tensors(alive):
    tensors = _Tensors()
    base = getattr(sys.modules.get("torch"), "Tensor", None)
    if base is None:
        return tensors
    # By type and never by isinstance, which asks `__class__` of objects that may import or build something to answer.
    kinds = _with_subclasses(base)
    for tensor in compress(alive, map(kinds.__contains__, map(type, alive))):
        try:
            tensors.add(tensor)
        except Exception:
            tensors.elsewhere += 1  # a wrapper without storage of its own
    return tensors


def _with_subclasses(base):
    kinds, waiting = set(), [base]
    while waiting:
        kind = waiting.pop()
        if kind not in kinds:
            kinds.add(kind)
            waiting += type.__subclasses__(kind)
    return kinds


def _name(kind):
    module = getattr(kind, "__module__", None)
    name = getattr(kind, "__qualname__", None) or str(kind)
    return name if module in (None, "builtins") or not isinstance(module, str) else f"{module}.{name}"


class PacedCounter:
    """Counts as often as a share of the time allows, and keeps the first and the last count."""

    def __init__(self, step=0, share=SHARE_OF_TIME):
        # Counts once before the steps begin: what it costs must be known before the first step pays for it.
        self.share = share
        self.first = None
        self.last = None
        self.done = 0
        self.skipped = 0
        self.spent_s = 0.0
        self._cost_s = 0.0
        self.count_now(step, with_types=True)
        self.done = 0
        self.spent_s = 0.0
        self._first_of_steps = None
        self._begin = time.monotonic()

    @property
    def baseline(self):
        """The count that growth is measured from: the first one among the steps, if it came in the first half of them.

        What the first steps make once and for all (optimizer state, caches) is no growth.
        """
        early = self._first_of_steps
        is_early = early is not None and early.step - self.first.step <= (self.last.step - self.first.step) / 2
        return early if is_early else self.first

    @property
    def cost_s(self):
        """What a count takes, in seconds."""
        return self._cost_s

    @property
    def pause_s(self):
        """How much time must pass between counts."""
        return self._cost_s / self.share

    @property
    def is_due(self):
        """Whether a count would keep within its share of the time that has passed."""
        return self.spent_s + self._cost_s <= self.share * (time.monotonic() - self._begin)

    def count_if_due(self, step):
        """A count, or None if it would take too large a share of the time."""
        if not self.is_due:
            self.skipped += 1
            return None
        taken = self.count_now(step, with_types=self._first_of_steps is None)
        self._first_of_steps = self._first_of_steps or taken
        return taken

    def count_now(self, step, with_types=False):
        """A count, whatever it costs."""
        taken = count(step, with_types)
        self.done += 1
        self.spent_s += taken.seconds
        # The last one tells best what the next will take; a hiccup is forgotten in time.
        self._cost_s = max(taken.seconds, 0.5 * (self._cost_s + taken.seconds))
        self.first = self.first or taken
        self.last = taken
        return taken

    def share_spent(self):
        """The share of the time that counting has taken."""
        passed = time.monotonic() - self._begin
        return self.spent_s / passed if passed > 0 else 0.0
