"""What holds memory: a look at everything alive before and after the passes, from the pieces and the modules downwards.

`Look` finds containers that have grown (with the way to them: `collator.kept`), images whose pixels were decoded meanwhile, tensors and types of
objects. `Tracing` finds the lines whose allocations are still there, and what all of Python's objects take. Each slows the program down and uses memory
itself, so each has a process of its own: a walk through a process with torch in it takes two seconds, and a minute while allocations are traced.
"""
import gc
import math
import os
import sys
import tracemalloc
from collections import Counter, deque
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType

from ..counts import count

FRAMES = 12
MOST_SHOWN = 8
# Enough for a process with torch and transformers loaded; beyond it the rest is left unseen, and that is told.
MOST_OBJECTS = 3_000_000
# With so many objects seen, what is left of a container is estimated from what was weighed.
MOST_WEIGHED = 200_000
DEEPEST_PATH = 6
NEVER_ENTERED = (ModuleType, FrameType, CodeType, BuiltinFunctionType)
PLAIN = (str, bytes, int, float, bool, complex, type(None))
GROWING = (list, dict, set, bytearray, deque)
# Bytes of a pixel as Pillow keeps it, by mode; all others take four.
SMALL_PIXELS = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}


class Look:
    """A look at what is alive: when it is made, and at `end`."""

    def __init__(self, pieces, iterator=None):
        self._pieces = pieces
        # Where the dataset is iterated: what a generator keeps is in its own variables.
        self._iterator = iterator
        self._walk = _Walk(self._roots())
        # The last thing here and the first at the end, so that what this look itself keeps is in both.
        self._count = count()

    def end(self):
        """What has changed since."""
        # Garbage that waits for the collector is part of the answer.
        gc.disable()
        alive = count()
        walk = _Walk(self._roots())
        garbage = gc.collect()
        return {
            "containers": walk.grown(self._walk)[:MOST_SHOWN],
            "images": walk.images_grown(self._walk),
            "tensors_bytes": alive.bytes_cpu - self._count.bytes_cpu,
            "tensors_gpu_bytes": alive.bytes_gpu - self._count.bytes_gpu,
            "pinned_bytes": walk.pinned - self._walk.pinned,
            "tensors": [{"bytes": size, "count": number, "shape": list(shape), "dtype": dtype, "device": device} for size, number, shape, dtype, device in alive.grown_tensors(self._count, MOST_SHOWN) if size > 0],
            "types": [{"type": name, "count": number} for number, name in _without_ours(alive.grown_types(self._count, 4 * MOST_SHOWN))[:MOST_SHOWN]],
            "caches": walk.caches_grown(self._walk),
            "garbage_objects": garbage,
            "is_complete": walk.is_complete and self._walk.is_complete,
        }

    def _roots(self):
        roots = [(name, getattr(self._pieces, name)) for name in self._pieces.present()]
        roots.append(("dataset.__iter__", self._iterator))
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and not name.startswith("model_garden.") and name != "model_garden":
                roots.append((f"module {name}", vars(module)))
        return roots


def _without_ours(grown):
    return [(number, name) for number, name in grown if not name.startswith("model_garden.")]


class Tracing:
    """What Python allocates from now on; what is left of it between `begin` and `end`."""

    def __init__(self):
        tracemalloc.start(FRAMES)

    @staticmethod
    def begin():
        """What is there before a pass."""
        lines = tracemalloc.take_snapshot()
        return tracemalloc.get_traced_memory()[0], lines

    @staticmethod
    def end(begun):
        """What has been added since each of these."""
        traced = tracemalloc.get_traced_memory()[0]
        lines = tracemalloc.take_snapshot()
        tracemalloc.stop()
        return [{"python_bytes": traced - before, "lines": _lines(lines, before_lines)} for before, before_lines in begun]


class _Walk:
    """Everything that can be reached from named roots, each with the shortest way to it."""

    def __init__(self, roots):
        self.sizes = {}  # id of a container -> how many it holds
        self.paths = {}
        self.kinds = {}
        self.images = {}  # way -> [how many decoded, bytes]
        self.caches = {}
        self.pinned = 0
        self.alive = {}
        self.is_complete = True
        torch = sys.modules.get("torch")
        # Without CUDA there is no pinned memory, and asking for it would load CUDA.
        self._may_be_pinned = torch is not None and torch.cuda.is_initialized()
        self._go(roots)

    def _go(self, roots):
        # By width, so that the shortest way is found first, and the pieces before the modules.
        seen = {id(self.__dict__), id(self)}
        waiting = deque()
        for name, root in roots:
            waiting.append((root, name, 0))
        lru = type(_cached)
        while waiting:
            thing, path, depth = waiting.popleft()
            mark = id(thing)
            if mark in seen:
                continue
            seen.add(mark)
            if len(seen) > MOST_OBJECTS:
                self.is_complete = False
                return
            kind = type(thing)
            # By type and never by isinstance, which asks `__class__` of objects that may import or build something to answer.
            if issubclass(kind, GROWING):
                self._container(mark, thing, kind, path)
            elif kind is lru:
                self.caches[path] = (thing.cache_info(), _name(thing))
            elif hasattr(kind, "__mro__") and any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in kind.__mro__):
                self._image(thing, path)
            elif self._may_be_pinned and hasattr(kind, "untyped_storage"):
                self._tensor(thing)
            for name, inner in _inside(thing, kind):
                if _is_entered(inner):
                    waiting.append((inner, path if depth >= DEEPEST_PATH else path + name, depth + 1))

    def _container(self, mark, thing, kind, path):
        try:
            self.sizes[mark] = len(thing)
        except Exception:
            return
        self.paths[mark] = path
        self.kinds[mark] = kind.__name__
        # So that no other object can have its number, and its contents can be weighed later.
        self.alive[mark] = thing

    def _image(self, image, path):
        pixels = decoded_bytes(image)
        if pixels:
            entry = self.images.setdefault(_without_places(path), [0, 0])
            entry[0] += 1
            entry[1] += pixels

    def _tensor(self, tensor):
        try:
            self.pinned += tensor.untyped_storage().nbytes() if tensor.is_pinned() else 0
        except Exception:
            return  # fake and meta tensors have no memory

    def grown(self, earlier):
        """Containers that hold more than earlier, the heaviest first."""
        rows = []
        for mark, number in self.sizes.items():
            before = earlier.sizes.get(mark)
            if before is not None and number > before and not _is_ours(self.alive[mark], self, earlier):
                thing = self.alive[mark]
                rows.append({"path": self.paths[mark], "type": self.kinds[mark], "before": before, "after": number, "bytes": _weight(thing, number - before), "of": _contents(thing), "graphs": _graphs(thing, number - before)})
        rows.sort(key=lambda row: (row["bytes"], row["after"] - row["before"]), reverse=True)
        return rows

    def images_grown(self, earlier):
        """Decoded images that were not there, or not decoded, earlier: by the way to them."""
        rows = []
        for path, (number, size) in self.images.items():
            before_number, before_size = earlier.images.get(path, (0, 0))
            if size > before_size:
                rows.append({"path": path, "count": number - before_number, "bytes": size - before_size})
        return sorted(rows, key=lambda row: row["bytes"], reverse=True)[:MOST_SHOWN]

    def caches_grown(self, earlier):
        """`functools.lru_cache`s that hold more than earlier."""
        rows = []
        for path, (info, name) in self.caches.items():
            before = earlier.caches.get(path)
            if info.currsize > (before[0].currsize if before else 0):
                rows.append({"name": name, "path": path, "before": before[0].currsize if before else 0, "after": info.currsize, "limit": info.maxsize})
        return sorted(rows, key=lambda row: row["before"] - row["after"])[:MOST_SHOWN]


def _cached_function():
    import functools

    return functools.lru_cache(maxsize=1)(len)


_cached = _cached_function()


def _is_entered(thing):
    kind = type(thing)
    if kind is BuiltinFunctionType:
        # `kept.append` has a list inside, `len` only its module.
        return not issubclass(type(thing.__self__), NEVER_ENTERED + PLAIN + (type,))
    return not issubclass(kind, NEVER_ENTERED + PLAIN)


def _is_ours(thing, *walks):
    return any(thing is table for walk in walks for table in vars(walk).values())


def _inside(thing, kind):
    """What an object refers to, with how one would write the way there."""
    if kind is dict:
        return [(f"[{_key(key)}]", value) for key, value in list(thing.items())] if not _is_namespace(thing) else [(f".{key}", value) for key, value in list(thing.items())]
    if kind in (list, tuple, deque):
        return [(f"[{place}]", value) for place, value in enumerate(list(thing))]
    if kind is FunctionType:
        names = thing.__code__.co_freevars
        inside = [(f"({name})", cell) for name, cell in zip(names, thing.__closure__ or ())]
        inside += [("(default)", value) for value in (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())]
        return inside + [(f".{key}", value) for key, value in list((thing.__dict__ or {}).items())] + [(".__wrapped__", getattr(thing, "__wrapped__", None))]
    if kind is MethodType:
        return [("", thing.__self__), ("", thing.__func__)]
    if issubclass(kind, type):
        # What a class keeps, all its objects share. Those of Python itself keep nothing of a user's.
        is_own = type.__dict__["__module__"].__get__(thing) not in sys.builtin_module_names
        return [(f".{name}", value) for name, value in list(type.__dict__["__dict__"].__get__(thing).items()) if is_own]
    if kind.__name__ == "cell" and kind.__module__ == "builtins":
        try:
            return [("", thing.cell_contents)]
        except ValueError:
            return []
    own = getattr(kind, "__dictoffset__", 0) and _attributes(thing)
    inside = [(f".{name}", value) for name, value in list(own.items())] if own else []
    if kind is GeneratorType and thing.gi_frame is not None:
        inside += [(f"({name})", value) for name, value in list(thing.gi_frame.f_locals.items()) if name.isidentifier()]
    if kind is BuiltinFunctionType:
        inside.append(("", thing.__self__))
    inside.append(("", kind))
    attributes = id(own) if own else None
    # Views, iterators and the like too: what they refer to has no name of its own.
    inside += [("", value) for value in gc.get_referents(thing) if id(value) != attributes and not issubclass(type(value), (type,))]
    return inside


def _attributes(thing):
    try:
        own = object.__getattribute__(thing, "__dict__")
    except Exception:
        return None
    return own if type(own) is dict else None


def _is_namespace(table):
    return "__name__" in table and "__builtins__" in table or "__spec__" in table and "__loader__" in table


def _key(key):
    text = repr(key) if isinstance(key, (str, int, float, bool, bytes, type(None))) else type(key).__name__
    return text if len(text) <= 24 else text[:21] + "..."


def _without_places(path):
    """A way without the numbers in it: what happens at every place of a list is one finding."""
    shown, skip = [], False
    for letter in path:
        if letter == "[":
            shown.append("[..]")
            skip = True
        elif letter == "]":
            skip = False
        elif not skip:
            shown.append(letter)
    return "".join(shown)


def _name(cache):
    wrapped = getattr(cache, "__wrapped__", None)
    module = getattr(wrapped, "__module__", None)
    name = getattr(wrapped, "__qualname__", None) or str(cache)
    return f"{module}.{name}" if module else name


def decoded_bytes(image):
    """The bytes of an image's pixels if they are in memory; never decodes it."""
    try:
        own = object.__getattribute__(image, "__dict__")
        core = own.get("_im", own.get("im"))
        width, height = core.size
        return width * height * SMALL_PIXELS.get(core.mode, 4)
    except Exception:
        return 0


def _weight(thing, added):
    """Roughly what the newest things in a container weigh, with all that is only reached through them."""
    if isinstance(thing, bytearray):
        return added
    newest = _newest(thing, added)
    if not newest:
        return 0
    keys = list(thing)[-added:] if isinstance(thing, dict) else newest
    seen = {id(thing)}
    weights = []
    for place in _spread(len(newest)):
        weights.append(_weigh([keys[place], newest[place]], seen))
        if len(seen) > MOST_WEIGHED:
            break
    # What all of them share is counted with the first, so the others tell what those that were not weighed add.
    others = weights[1:]
    return int(weights[0] + (sum(others) / len(others) * (len(newest) - 1) if others else 0))


def _spread(length):
    """All places below `length`, so that however many are taken, they lie evenly: each next one is the golden ratio of the whole further."""
    step = max(1, round(length * 0.618))
    while math.gcd(step, length) > 1:
        step += 1
    return (place * step % length for place in range(length))


def _weigh(waiting, seen):
    """The bytes of these objects and of all that is reached through them, apart from what was seen before, and now is."""
    total = 0
    while waiting and len(seen) < MOST_OBJECTS:
        one = waiting.pop()
        if id(one) in seen or issubclass(type(one), NEVER_ENTERED + (FunctionType, type)):
            continue
        seen.add(id(one))
        total += _size(one)
        waiting.extend(gc.get_referents(one))
        # Python leaves out keys that are texts, as no cycle goes through them.
        waiting.extend(dict.keys(one) if issubclass(type(one), dict) else ())
    return total


def _newest(thing, added):
    try:
        return list(thing.values() if isinstance(thing, dict) else thing)[-added:]
    except Exception:
        return []


def _graphs(thing, added):
    """How many of the newest things are tensors with the graph that made them, which holds every activation."""
    if "torch" not in sys.modules:
        return 0
    inner = []
    for one in _newest(thing, added):
        inner += one.values() if type(one) is dict else one if type(one) in (list, tuple) else [one]
    return sum(1 for one in inner if hasattr(type(one), "untyped_storage") and one.grad_fn is not None)


def _size(thing):
    try:
        size = sys.getsizeof(thing)
        pixels = decoded_bytes(thing) if type(thing).__module__.startswith("PIL.") else 0
        if hasattr(type(thing), "untyped_storage"):
            pixels = thing.untyped_storage().nbytes()
        return size + pixels
    except Exception:
        return 0


def _contents(thing):
    """What a container mostly holds."""
    newest = _newest(thing, 50)
    if isinstance(thing, bytearray) or not newest:
        return None
    kind = Counter(type(one) for one in newest).most_common(1)[0][0]
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _lines(after, before):
    """The lines whose allocations are still held, in the user's own code where that is on the way."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    by_line = {}
    # Filtered by hand and after grouping: the module's own filters look at every single block, which takes seconds.
    for difference in after.compare_to(before, "traceback"):
        newest = difference.traceback[-1].filename
        frames = [frame for frame in difference.traceback if not frame.filename.startswith(ours)]
        if difference.size_diff == 0 or not frames or newest.startswith(ours) or newest == tracemalloc.__file__:
            continue
        # The newest frame comes last. A library's line says little; the line of the user that led there says it.
        users = [frame for frame in frames if _is_users(frame.filename)]
        frame = users[-1] if users else frames[-1]
        entry = by_line.setdefault((frame.filename, frame.lineno), [0, 0])
        entry[0] += difference.size_diff
        entry[1] += difference.count_diff
    top = sorted(by_line.items(), key=lambda row: row[1][0], reverse=True)[:MOST_SHOWN]
    return [{"file": file, "line": line, "bytes": size, "blocks": blocks, "text": _source(file, line)} for (file, line), (size, blocks) in top if size > 0]


def _is_users(file):
    return not file.startswith("<") and "site-packages" not in file and "dist-packages" not in file and not file.startswith(os.path.dirname(os.__file__))


def _source(file, line):
    import linecache

    return linecache.getline(file, line).strip()[:160] or None
