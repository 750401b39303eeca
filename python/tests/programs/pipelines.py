"""Pipelines whose memory grows in a known way, with sizes, counts and places that are drawn by a seed.

    MODEL_GARDEN_DRAW=7 model-garden bisect pipelines:keeping_collator

Every family here is a function that makes the pieces of one draw; `case(family, seed)` also tells what `bisect` must say about it.
"""
import collections
import ctypes
import functools
import io
import mmap
import os
import random
import sys
import tempfile

KIB = 1 << 10
FAMILIES = {}
# Where `at_module` keeps things: what grows here is found under this module's name.
KEPT_LIST = []
KEPT_DICT = {}


class Case:
    """Pieces, and what must be said about them. None in `expected` means that nothing else may be said."""

    def __init__(self, pieces, verdict, cause=None, keeper=None, begins_with=None, bytes_per_example=None, names=None, at_most=None, least_passes=2):
        self.pieces = pieces
        self.expected = {"verdict": verdict, "cause": cause, "keeper": keeper, "begins_with": begins_with}
        self.bytes_per_example = bytes_per_example
        # Part of the way to what grows, such as the name of the attribute.
        self.names = names
        # How many examples it keeps at most.
        self.at_most = at_most
        # Passes below which it cannot be told.
        self.least_passes = least_passes


class Draw:
    """What all families draw: how many examples are asked for and are there, the batch, and the bytes that each example is about."""

    def __init__(self, family, seed):
        self.random = random.Random(f"{family} {seed}")
        self.examples = self.random.randint(20, 80)
        self.length = self.random.randint(self.examples + 4, 400)
        self.batch_size = self.random.choice([1, 2, 3, 4, 5, 8])
        self.each = self.about(16 * KIB, 512 * KIB)

    def about(self, least, most):
        """A number whose logarithm is even between these two."""
        return int(least * (most / least) ** self.random.random())

    def one_of(self, *choices):
        return self.random.choice(choices)


def family(make):
    """Notes a family; its name then makes the pieces of the draw that the environment names."""
    name = make.__name__
    FAMILIES[name] = make

    @functools.wraps(make)
    def pieces():
        return case(name, os.environ["MODEL_GARDEN_DRAW"]).pieces

    return pieces


def case(name, seed):
    """One draw of a family."""
    draw = Draw(name, seed)
    made = FAMILIES[name](draw)
    made.pieces.setdefault("batch_size", draw.batch_size)
    made.examples = draw.examples
    return made


# --- What is kept ---------------------------------------------------------------------------------------------------------------


def payload(kind, size, number):
    """About so many bytes, all of them written to: zeros that nobody wrote take no memory."""
    if kind == "bytes":
        return bytes([1 + number % 250]) * size
    if kind == "bytearray":
        return bytearray([1 + number % 250]) * size
    if kind == "strings":
        return [f"{number} {place:090d}" for place in range(size // 160)]
    return {f"{number}-{place}": number + place / 7 for place in range(size // 190)}


def weight(thing):
    """What a payload takes: Python rounds small objects up to 16 bytes."""
    parts = [thing]
    if isinstance(thing, list):
        parts += thing
    if isinstance(thing, dict):
        parts += [*thing, *thing.values()]
    return sum(-(-sys.getsizeof(part) // 16) * 16 for part in parts)


KINDS = ("bytes", "bytearray", "strings", "dict")


# --- Where it is kept -----------------------------------------------------------------------------------------------------------


def keeping(where, empty, keep):
    """A function of one argument that calls `keep(container, argument)`, and the name of the container's place."""
    if where == "attribute":

        class Keeping:
            def __init__(self):
                self.kept = empty()

            def __call__(self, value):
                return keep(self.kept, value)

        return Keeping(), "kept"
    if where == "class":

        class Sharing:
            shared = empty()

            def __call__(self, value):
                return keep(self.shared, value)

        return Sharing(), "shared"
    if where == "closure":
        remembered = empty()

        def piece(value):
            return keep(remembered, value)

        return piece, "remembered"
    if where == "nested":

        class Nested:
            def __init__(self):
                self.state = {"history": empty()}

            def __call__(self, value):
                return keep(self.state["history"], value)

        return Nested(), "history"
    if where == "module":
        kept = KEPT_LIST if empty is list else KEPT_DICT
        return (lambda value: keep(kept, value)), "KEPT_"
    raise ValueError(where)


PLACES = ("attribute", "class", "closure", "nested", "module")


def keeper(piece, where):
    """Who is to be named."""
    return f"module {__name__}" if where == "module" else piece


class Rows:
    """A dataset that makes its examples: (number, some bytes). `also` is called with each number."""

    def __init__(self, length, size, also=None, sizes=None):
        self.length = length
        self.size = size
        self.also = also
        self.sizes = sizes

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        if not 0 <= number < self.length:
            raise IndexError(number)
        if self.also is not None:
            self.also(number)
        size = self.size if self.sizes is None else self.sizes(number)
        return number, bytes([1 + number % 250]) * size


def passing(example):
    """A processor that makes something new and keeps nothing."""
    number, data = example
    return number, data[::2]


def joining(examples):
    """A collator that keeps nothing."""
    return b"".join(data for _, data in examples)


def rows(draw, **more):
    return Rows(draw.length, draw.about(4 * KIB, 256 * KIB), **more)


def numbers_of(value):
    """The numbers of the examples in whatever a piece gets."""
    if isinstance(value, int):
        return [value]
    if isinstance(value, tuple):
        return [value[0]]
    return [number for number, _ in value]


def with_piece(draw, piece, function):
    """A pipeline in which `function` is called with what that piece gets; the others keep nothing."""

    def first(value):
        function(value)
        return passing(value) if piece == "processor" else joining(value)

    # Such a function has its keeper inside: `processor(function).kept`.
    pieces = {"dataset": rows(draw, also=function if piece == "dataset" else None), "processor": passing, "collator": joining}
    if piece in ("processor", "collator"):
        pieces[piece] = first
    if piece == "callbacks":
        pieces["callbacks"] = [function]
    if draw.one_of(True, False) and piece not in ("processor", "collator"):
        del pieces["processor"], pieces["collator"]
    return pieces


def per_call(draw, piece):
    """What a piece keeps at each call: callbacks and collators are called once per batch."""
    return draw.each * (1 if piece in ("dataset", "processor") else draw.batch_size)


def per_example(draw, piece, size):
    """What that makes for each example: the last batch may be a small one."""
    if piece in ("dataset", "processor"):
        return size
    batches = -(-counted(draw) // draw.batch_size)
    return size * batches / counted(draw)


def counted(draw):
    """Examples that count; the others warm up."""
    from model_garden.experiment.measured import choose

    return len(choose(draw.length, draw.examples, draw.batch_size)[1])


def warm_up(draw):
    """Examples that warm up."""
    from model_garden.experiment.measured import choose

    return len(choose(draw.length, draw.examples, draw.batch_size)[0])


# --- Caches ---------------------------------------------------------------------------------------------------------------------


@family
def example_cache(draw):
    """A dict with something for each example that was ever seen."""
    piece, where, kind = draw.one_of("dataset", "processor", "collator"), draw.one_of(*PLACES), draw.one_of(*KINDS)
    size = draw.each

    def keep(kept, value):
        for number in numbers_of(value):
            if number not in kept:
                kept[number] = payload(kind, size, number)

    function, name = keeping(where, dict, keep)
    pieces = with_piece(draw, piece, function)
    return Case(pieces, "cache", "example_cache", keeper(piece, where), piece, weight(payload(kind, size, 7)), name)


@family
def slots(draw):
    """A list with a place for each example, which is filled when it is first asked for: no container gets longer."""
    size, length, kind = draw.each, draw.length, draw.one_of(*KINDS)

    class Slots(Rows):
        def __init__(self):
            super().__init__(length, 100)
            self.slots = [None] * length

        def __getitem__(self, number):
            if self.slots[number] is None:
                self.slots[number] = payload(kind, size, number)
            return number, b"x"

    return Case({"dataset": Slots(), "collator": joining}, "cache", "example_cache", "dataset", "dataset", weight(payload(kind, size, 7)))


@family
def unbounded_lru_cache(draw):
    """`functools.lru_cache(None)` on what loads an example."""
    size, kind = draw.each, draw.one_of(*KINDS)

    @functools.lru_cache(maxsize=None)
    def load(number):
        return payload(kind, size, number)

    piece = draw.one_of("dataset", "processor")
    pieces = with_piece(draw, piece, lambda value: load(numbers_of(value)[0]))
    return Case(pieces, "cache", "example_cache", piece, piece, weight(payload(kind, size, 7)), "load")


@family
def bounded_lru_cache(draw):
    """An lru_cache that is full before half of the examples were seen."""
    draw.examples = max(draw.examples, 40)
    draw.length = max(draw.length, draw.examples + 40)
    draw.batch_size = draw.one_of(1, 2, 3)
    size, kind = draw.about(64 * KIB, 512 * KIB), draw.one_of(*KINDS)
    most = warm_up(draw) + draw.random.randint(draw.examples // 3, draw.examples // 2)

    @functools.lru_cache(maxsize=most)
    def load(number):
        return payload(kind, size, number)

    pieces = with_piece(draw, "dataset", load)
    return Case(pieces, "full_cache", "example_cache", "dataset", "dataset", weight(payload(kind, size, 7)), "load")


@family
def roomy_lru_cache(draw):
    """An lru_cache with a limit that these examples do not reach, and the dataset does."""
    draw.length = draw.random.randint(300, 4000)
    size = draw.each

    most = draw.one_of(128, 256)

    @functools.lru_cache(maxsize=most)
    def load(number):
        return payload("bytes", size, number)

    pieces = with_piece(draw, "dataset", load)
    return Case(pieces, "cache", "example_cache", "dataset", "dataset", size, "load", at_most=most)


@family
def native_cache(draw):
    """Memory of a C library for each new example."""
    piece, size, seen = draw.one_of("dataset", "processor"), draw.each, set()

    def function(value):
        number = numbers_of(value)[0]
        if number not in seen:
            seen.add(number)
            take(size)

    return Case(with_piece(draw, piece, function), "cache", "native_cache", None, piece, size)


# --- Images ---------------------------------------------------------------------------------------------------------------------


def photographs(draw):
    """Compressed images, the bytes that Pillow takes for one when it has decoded it, and the compressed bytes that it lets go then."""
    from PIL import Image

    draw.length = min(draw.length, draw.examples + 40)
    width, height = draw.random.randint(100, 500), draw.random.randint(100, 400)
    form = draw.one_of("JPEG", "PNG", "WEBP")
    mode = draw.one_of("RGB", "RGB", "L") if form != "WEBP" else "RGB"
    compressed = []
    for number in range(draw.length):
        small = Image.frombytes(mode, (8, 8), random.Random(number).getrandbits(8 * 64 * len(mode)).to_bytes(64 * len(mode), "little"))
        stream = io.BytesIO()
        small.resize((width, height)).save(stream, form)
        compressed.append(stream.getvalue())
    # A pointer for each row comes with the pixels. JPEG files are let go when they have been decoded, PNG files are not.
    decoded = width * height * (1 if mode == "L" else 4) + 8 * height
    released = sum(map(len, compressed)) / len(compressed) if form == "JPEG" else 0
    # Images of WebP files keep their decoder, whose size is no known number.
    return compressed, None if form == "WEBP" else decoded, released


@family
def opened_images(draw):
    """Images that were opened and are kept: decoded when they are first used."""
    from PIL import Image

    compressed, decoded, released = photographs(draw)
    piece = draw.one_of("processor", "collator")
    dataset = [Image.open(io.BytesIO(one)) for one in compressed]
    if draw.one_of(True, False):
        dataset = [{"image": image, "text": str(number)} for number, image in enumerate(dataset)]

    def image_of(example):
        return example["image"] if isinstance(example, dict) else example

    def use(example):
        return image_of(example).resize((16, 16)).tobytes()

    # Nothing is freed by that if somebody else has the compressed bytes too.
    if draw.one_of(True, False):
        dataset = Holding(dataset, compressed)
        released = 0
    pieces = {"dataset": dataset, "collator": b"".join}
    if piece == "processor":
        pieces["processor"] = use
    else:
        pieces["collator"] = lambda examples: b"".join(map(use, examples))
    return Case(pieces, "cache", "decoded_images_kept", "dataset", piece, decoded and decoded - released)


@family
def opened_files(draw):
    """Images that were opened by the names of their files: every process must read them as if it were the only one."""
    from PIL import Image

    draw.length = min(draw.length, draw.examples + 40)
    # Files are read in blocks: those of one block only would be read before anybody forks.
    width, height = draw.random.randint(300, 500), draw.random.randint(200, 400)
    form = draw.one_of("jpg", "png", "webp", "tiff")
    piece = draw.one_of("processor", "collator")
    dataset = []
    # An open file is read to its end, whether its name is still there or not.
    with tempfile.TemporaryDirectory() as folder:
        for number in range(draw.length):
            noise = Image.frombytes("RGB", (width, height // 4), random.Random(number).randbytes(3 * width * (height // 4)))
            path = os.path.join(folder, f"{number}.{form}")
            noise.resize((width, height)).save(path)
            dataset.append(Image.open(path))

    def use(image):
        return image.resize((16, 16)).tobytes()

    pieces = {"dataset": dataset, "collator": b"".join}
    if piece == "processor":
        pieces["processor"] = use
    else:
        pieces["collator"] = lambda examples: b"".join(map(use, examples))
    # The file is closed with its buffer once it has been decoded.
    decoded = width * height * 4 + 8 * height - io.DEFAULT_BUFFER_SIZE
    return Case(pieces, "cache", "decoded_images_kept", "dataset", piece, decoded if form in ("jpg", "png") else None)


class Holding:
    """A dataset that has the compressed bytes too."""

    def __init__(self, images, compressed):
        self.images = images
        self.compressed = compressed

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        return self.images[number]


@family
def lazy_images(draw):
    """The same images in LazyImages."""
    from model_garden import LazyImages

    compressed, _, _ = photographs(draw)
    return Case({"dataset": LazyImages(compressed), "processor": lambda image: image.resize((16, 16)).tobytes(), "collator": b"".join}, "flat")


# --- Leaks ----------------------------------------------------------------------------------------------------------------------


@family
def keeping_collator(draw):
    """A collator that keeps every batch."""
    where = draw.one_of(*PLACES)
    function, name = keeping(where, list, lambda kept, batch: kept.append(batch) or batch)
    source = rows(draw)
    source.size = draw.each
    pieces = {"dataset": source, "collator": function}
    return Case(pieces, "leak", "growing_container", keeper("collator", where), "collator", sys.getsizeof(bytes(draw.each)), name)


@family
def kept_arrays(draw):
    """A collator that makes numpy arrays and keeps them."""
    import numpy

    size, where = draw.each, draw.one_of(*PLACES)

    def keep(kept, examples):
        kept.append(numpy.stack([numpy.frombuffer(data, dtype=numpy.uint8) for _, data in examples]))

    function, name = keeping(where, list, keep)
    source = rows(draw)
    source.size = size
    return Case({"dataset": source, "collator": function}, "leak", "growing_container", keeper("collator", where), "collator", size, name)


@family
def growing_container(draw):
    """A container of Python that gets longer with each call of some piece."""
    piece, where, kind = draw.one_of("dataset", "processor", "collator", "callbacks", "callbacks"), draw.one_of(*PLACES), draw.one_of(*KINDS)
    size = per_call(draw, piece)
    if where != "module" and draw.one_of(True, False):
        empty, add = collections.deque, collections.deque.append
    elif draw.one_of(True, False):
        empty, add = dict, lambda kept, one: kept.__setitem__(len(kept), one)
    else:
        empty, add = list, list.append
    count = iter(range(10**9))
    function, name = keeping(where, empty, lambda kept, value: add(kept, payload(kind, size, next(count))))
    each = per_example(draw, piece, weight(payload(kind, size, 7)))
    return Case(with_piece(draw, piece, function), "leak", "growing_container", keeper(piece, where), piece, each, name)


@family
def hidden_container(draw):
    """A container that gets longer and can only be reached through something else: a view of it, a method, a generator, an iterator."""
    piece, way = draw.one_of("processor", "collator", "callbacks"), draw.one_of("method", "view", "generator", "map", "partial", "set")
    size = per_call(draw, piece)
    count = iter(range(10**9))

    def one():
        return bytes([1 + next(count) % 250]) * size

    class Hiding:
        def __call__(self, value):
            {"method": self.add, "view": self.put, "generator": self.send, "map": self.advance, "partial": self.add, "set": self.join}[way]()

        def add(self):
            self.way_in(one())

        def put(self):
            self.way_in(next(count), one())

        def send(self):
            self.way_in.send(one())

        def advance(self):
            next(self.way_in)

        def join(self):
            next(iter(self.way_in))[0](one())

    def sink():
        kept = []
        while True:
            kept.append((yield))

    hiding, kept = Hiding(), []
    if way == "method":
        hiding.way_in = kept.append
    elif way == "view":
        table = {}
        hiding.way_in, hiding.seen = table.setdefault, table.values()
    elif way == "generator":
        hiding.way_in = sink()
        next(hiding.way_in)
    elif way == "map":
        hiding.way_in = map(lambda number, remembered=kept: remembered.append(one()), iter(range(10**9)))
    elif way == "partial":
        hiding.way_in = functools.partial(list.append, kept)
    else:
        hiding.way_in = {(kept.append, "the only one")}
    name = "way_in(kept)" if way == "generator" else "way_in"
    names = None if way == "view" else name
    del kept
    return Case(with_piece(draw, piece, hiding), "leak", "growing_container", piece, piece, per_example(draw, piece, size), names)


@family
def generator_that_keeps(draw):
    """An iterable dataset whose generator keeps what it gave."""
    length, size, kind = draw.length, draw.each, draw.one_of("bytes", "bytearray")

    class Stream:
        def __iter__(self):
            given = []
            for number in range(length):
                given.append(payload(kind, size, number))
                yield number, b"x"

    return Case({"dataset": Stream(), "collator": joining}, "cache", "example_cache", "dataset", "dataset", size, "__iter__(given)")


def library():
    loaded = ctypes.CDLL(None)
    loaded.malloc.restype = ctypes.c_void_p
    loaded.malloc.argtypes = [ctypes.c_size_t]
    loaded.mmap.restype = ctypes.c_void_p
    loaded.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    return loaded


def take(size, how="malloc"):
    """Memory that Python knows nothing of and nobody gives back."""
    if how == "malloc":
        ctypes.memset(library().malloc(size), 1, size)
    else:
        ctypes.memset(library().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0), 1, size)


@family
def native_leak(draw):
    """Memory of C that is never freed."""
    piece, how = draw.one_of("dataset", "processor", "collator", "callbacks"), draw.one_of("malloc", "mmap")
    size = per_call(draw, piece)
    taken = -(-size // 4096) * 4096 if how == "mmap" else size
    pieces = with_piece(draw, piece, lambda value: take(size, how))
    return Case(pieces, "leak", "native_leak", piece, piece, per_example(draw, piece, taken))


@family
def cache_and_leak(draw):
    """A dataset that caches, and a collator that leaks: the leak is the answer, the cache is told too."""
    kept, size = [], per_call(draw, "collator")
    cache = {}
    dataset = rows(draw, also=lambda number: cache.setdefault(number, payload("bytes", 2 * size, number)))
    pieces = {"dataset": dataset, "processor": passing, "collator": lambda examples: kept.append(bytes([1]) * size)}
    return Case(pieces, "leak", "growing_container", "collator", "collator", per_example(draw, "collator", size), "kept")


@family
def leak_behind_a_cache(draw):
    """A piece that caches for every example, or follows one that does, and leaks a fortieth or less of it in every pass: one or two MiB behind 80."""
    draw.examples = max(draw.examples, 40)
    draw.length = max(draw.length, draw.examples + 4)
    cache, kept, piece = {}, [], draw.one_of("processor", "collator")
    # From a MiB on: with two passes as with many.
    size = draw.about(1024 * KIB, 4096 * KIB) // -(-draw.examples // draw.batch_size)
    each = draw.random.randint(40, 60) * size // draw.batch_size

    def remember(number):
        if number not in cache:
            cache[number] = payload("bytes", each, number)

    def leak(value):
        for number in numbers_of(value) if is_own else ():
            remember(number)
        # As much for an example as for its part of a batch.
        kept.append(payload("bytes", size if piece == "collator" else size // draw.batch_size, 7))

    is_own = draw.one_of(True, False)
    pieces = with_piece(draw, piece, leak)
    if not is_own:
        pieces["dataset"].also = remember
    lost = per_example(draw, piece, size if piece == "collator" else size // draw.batch_size)
    return Case(pieces, "leak", "growing_container", piece, piece, lost, "kept", least_passes=3)


@family
def cache_and_native_leak(draw):
    """A dataset that caches Python objects, and a later piece that loses half as much in C."""
    cache, piece = {}, draw.one_of("processor", "collator")
    size = per_call(draw, piece)
    pieces = with_piece(draw, piece, lambda value: take(size))
    pieces["dataset"].also = lambda number: cache.setdefault(number, payload("bytes", 2 * size, number))
    return Case(pieces, "leak", "native_leak", piece, piece, per_example(draw, piece, size))


# --- Garbage --------------------------------------------------------------------------------------------------------------------


class Node:
    """Something that refers to another one, which refers back."""


def cycle(size):
    one, other = Node(), Node()
    one.other, other.one = other, one
    one.data = bytes([1]) * size


@family
def few_large_cycles(draw):
    """One cycle per call, with something large in it: the collector, which counts objects, rarely runs."""
    piece = draw.one_of("dataset", "processor", "collator", "callbacks")
    size = per_call(draw, piece)
    pieces = with_piece(draw, piece, lambda value: cycle(size))
    return Case(pieces, "garbage", "garbage_cycles", None, piece, per_example(draw, piece, size))


@family
def many_small_cycles(draw):
    """Many cycles per call: the collector runs by itself."""
    piece, number = draw.one_of("processor", "dataset"), draw.random.randint(20, 120)
    size = draw.about(4 * KIB, 24 * KIB)
    pieces = with_piece(draw, piece, lambda value: [cycle(size) for _ in range(number)])
    return Case(pieces, "garbage", "garbage_cycles", None, piece, number * size)


# --- Loader workers -------------------------------------------------------------------------------------------------------------


def values(example):
    return list(example.values())[0]


@family
def copied_rows(draw):
    """Rows of Python objects, of which forked workers copy the pages that they touch."""
    entries = draw.random.randint(100, 400)
    source = [{f"{number} {place}": f"{place:060d}" for place in range(entries)} for number in range(draw.length + 300)]
    pieces = {"dataset": source, "collator": lambda examples: [values(one) for one in examples], "workers": draw.random.randint(1, 3)}
    # The values of a row, each of 112 bytes, and the pages that it shares with others: that of the dict itself, and the half pages at both ends.
    return Case(pieces, "copies", "worker_copy_on_write", None, "workers", entries * 112 + 6 * KIB)


@family
def flat_workers(draw):
    """Workers whose examples are made and dropped."""
    pieces = {"dataset": rows(draw), "processor": passing, "collator": joining, "workers": draw.random.randint(1, 3)}
    return Case(pieces, "flat")


@family
def caching_workers(draw):
    """A dataset that caches, also in each worker."""
    size, cache = draw.each, {}
    dataset = rows(draw, also=lambda number: cache.setdefault(number, payload("bytes", size, number)))
    return Case({"dataset": dataset, "collator": joining, "workers": draw.random.randint(1, 3)}, "cache", "example_cache", "dataset", "dataset", size)


# --- Nothing --------------------------------------------------------------------------------------------------------------------


@family
def flat(draw):
    """Nothing is kept."""
    return Case({"dataset": rows(draw), "processor": passing, "collator": joining}, "flat")


@family
def varying_sizes(draw):
    """Nothing is kept, and no two examples are of the same size."""
    least, most = draw.about(KIB, 16 * KIB), draw.about(64 * KIB, 4096 * KIB)

    def size(number):
        return int(least * (most / least) ** random.Random(number).random())

    dataset = rows(draw, sizes=size)
    return Case({"dataset": dataset, "processor": passing, "collator": joining}, "flat")


@family
def small_objects(draw):
    """Many small objects per example, all dropped again."""
    number = draw.random.randint(200, 3000)

    def split(example):
        return example[0], b"".join(str(place * example[0]).encode() for place in range(number))

    return Case({"dataset": rows(draw), "processor": split, "collator": joining}, "flat")


@family
def mapped_file(draw):
    """A file that is mapped and read: its pages are resident, and the kernel may take them back."""
    draw.length = min(draw.length, 200)
    size = draw.about(256 * KIB, 1024 * KIB)
    with tempfile.TemporaryFile() as file:
        for _ in range(draw.length):
            file.write(b"\1" * size)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    class Mapped:
        def __len__(self):
            return draw.length

        def __getitem__(self, number):
            return number, mapped[number * size : (number + 1) * size]

    return Case({"dataset": Mapped(), "processor": passing}, "file_pages", "mapped_file_pages", None, "dataset")
