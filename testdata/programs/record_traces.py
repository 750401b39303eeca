#!/usr/bin/env python3
"""Records labelled memory traces from small real programs: CSV with one sample per step, JSON with what is true about it.

usage: record_traces.py FOLDER [NAME...]

Records all programs, or those named, one after the other, each in a process of its own (about four minutes for all;
Linux, Python standard library only). TRACE_SEED=text picks other random sizes than those of testdata/traces.
"""
import collections, csv, ctypes, gc, json, math, mmap, os, pathlib, random, signal, subprocess, sys, tempfile, time

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
MIB = 2**20
PROGRAMS = {}


def block(mib):
    return b"\x01" * max(1, int(mib * MIB))


class Recorder:
    """One program's run: temporary allocations per step, and one sample per step."""

    def __init__(self, name, low=1.0, high=10.0, held=None, sleep=0.002):
        self.rng = random.Random(name + os.environ.get("TRACE_SEED", ""))  # reproducible
        self.low, self.high, self.sleep = low, high, sleep
        self.held = held  # True: sampled while the temporaries live; False: after; None: mixed
        self.rows, self.start, self.temp = [], time.perf_counter(), None
        self.source = None

    def read(self):
        values = {"VmRSS": 0, "RssAnon": 0, "RssFile": 0, "RssShmem": 0}
        for line in open("/proc/self/status"):
            key, _, rest = line.partition(":")
            if key in values:
                values[key] = int(rest.split()[0]) / 1024
        return list(values.values())

    def work(self, low=None, high=None, spread=0.4):
        """The step's own temporaries: a few buffers of random size."""
        low, high = self.low if low is None else low, self.high if high is None else high
        total = self.rng.uniform(low, high)
        self.temp = None
        parts = self.rng.randint(1, 5)
        self.temp = [block(total / parts * self.rng.uniform(1 - spread, 1 + spread)) for _ in range(parts)]

    def sample(self, step, label="train"):
        keep = self.held if self.held is not None else self.rng.random() < 0.5
        if not keep:
            self.temp = None
        if self.sleep:
            time.sleep(self.rng.uniform(0.5, 1.5) * self.sleep)
        values = (self.source or self.read)()
        self.rows.append([step, f"{time.perf_counter() - self.start:.4f}"] + [f"{v:.3f}" for v in values] + [label])


def program(verdict, mechanism, accepted=None, steps=400, low=1.0, high=10.0, held=None, knee=None, soft=False,
            spe=None, rate=0.0, sleep=0.002, **more):
    def register(function):
        name = function.__name__
        PROGRAMS[name] = (function, dict(steps=steps, low=low, high=high, held=held, sleep=sleep), dict(
            verdict=verdict, kind=more.pop("kind", name), knee_step=knee, knee_is_soft=soft, steps_per_epoch=spe,
            leak_mib_per_step=rate, mechanism=mechanism, accepted_verdicts=accepted or [verdict], **more))
        return function
    return register


def run(name):
    function, how, label = PROGRAMS[name]
    how = dict(how)
    steps = how.pop("steps")
    recorder = Recorder(name, **how)
    truth = function(recorder, steps) or {}
    recorder.temp = None
    label = {"trace": f"{name}.csv", **label}
    for key in ("leak_mib_per_step", "knee_step"):
        if key in truth:
            label[key] = truth.pop(key)
    clean = label.pop("observe", None)
    if clean:  # what is kept, plus the holes the allocator leaves between what is kept: the growth the process shows
        begin, unit, column = clean
        values = [float(row[column]) for row in recorder.rows[begin:]]
        span = max(1, len(values) // 2 // unit) * unit
        seen = sum(values[t + span] - values[t] for t in range(len(values) - span)) / (len(values) - span) / span
        kept = label["leak_mib_per_step"]
        truth.update(kept_mib_per_step=kept, observed_mib_per_step=round(seen, 4))
        if abs(seen / kept - 1) > 0.08:
            label["leak_mib_per_step"] = round(seen, 4)
    label["truth"] = {**label.get("truth", {}), **truth, "program": " ".join((function.__doc__ or "").split())}
    with open(FOLDER / f"{name}.csv", "w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow("step time_s rss_mb anon_mb file_mb shmem_mb label".split())
        writer.writerows(recorder.rows)
    (FOLDER / f"{name}.json").write_text(json.dumps(label, indent=1) + "\n")


def map_large(mib=1.0):
    """Fixes malloc's mmap threshold (as MALLOC_MMAP_THRESHOLD_ does), so that large blocks go back when freed."""
    ctypes.CDLL(None).mallopt(-3, int(mib * MIB))


class Cycle:
    """Garbage that only the cycle collector frees."""
    def __init__(self, mib):
        self.data, self.me = block(mib), self


def simple(r, steps, each):
    for step in range(steps):
        r.work()
        each(step)
        r.sample(step)


# ------------------------------------------------------------------------------------------------------------ leaks
@program("leak", ["linear"], steps=320, spe=40, rate=0.6, low=2, high=14, observe=(0, 1, 2))
def native_malloc_leak(r, steps):
    """malloc by ctypes, 0.6 MiB a step, never freed."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    def each(step):
        size = int(0.6 * MIB)
        ctypes.memset(libc.malloc(size), 1, size)
    simple(r, steps, each)


@program("leak", ["linear"], steps=600, spe=75, rate=0.12, low=1, high=10, observe=(0, 1, 2))
def slow_leak(r, steps):
    """A list keeps 0.12 MiB a step."""
    kept = []
    simple(r, steps, lambda step: kept.append(block(0.12)))


@program("leak", ["linear"], steps=700, spe=70, rate=0.15, low=2, high=32, held=True, observe=(0, 1, 2))
def slow_leak_noisy(r, steps):
    """A list keeps 0.15 MiB a step under temporaries of 2 to 32 MiB."""
    kept = []
    simple(r, steps, lambda step: kept.append(block(0.15)))


@program("leak", ["linear"], steps=500, spe=50, rate=0.5, low=5, high=120, held=True, observe=(0, 1, 2))
def leak_big_noise(r, steps):
    """A list keeps 0.5 MiB a step under temporaries of 5 to 120 MiB."""
    kept = []
    simple(r, steps, lambda step: kept.append(block(0.5)))


@program("leak", ["linear"], steps=450, spe=50, rate=0.0, low=1, high=8, observe=(0, 1, 2))
def small_object_leak(r, steps):
    """A history of small dicts and strings grows every step (about 0.25 MiB), never cut."""
    history = []
    size = 0
    for step in range(steps):
        r.work()
        for i in range(600):
            entry = {"step": step * 600 + i, "text": "x" * 60 + str(step * 600 + i)}
            history.append(entry)
            if i == 0:
                size = sum(map(sys.getsizeof, (entry, entry["step"], entry["text"], "step"))) - sys.getsizeof("step") + 16
        r.sample(step)
    return {"leak_mib_per_step": 600 * (size + 8) / MIB}


@program("leak", ["linear", "late_onset"], steps=500, spe=100, rate=0.3, low=2, high=12,
         truth={"fill_mb": 1000.0, "fill_steps": 100}, observe=(105, 1, 2))
def leak_under_large_fill(r, steps):
    """Each example (1 MiB, ten a step) is cached in epoch 1; besides, 0.3 MiB a step is kept for ever."""
    cache, kept = {}, []
    for epoch in range(steps // 100):
        order = list(range(1000))
        r.rng.shuffle(order)
        for i in range(100):
            r.work()
            for key in order[i * 10:i * 10 + 10]:
                if key not in cache:
                    cache[key] = block(1.0)
            kept.append(block(0.3))
            r.sample(epoch * 100 + i)


@program("leak", ["linear", "late_onset"], steps=480, spe=80, rate=0.3, low=2, high=20,
         truth={"fill_mb": 400.0, "fill_steps": 80}, examples=640, batch_size=4, gradient_accumulation=2, observe=(85, 1, 2))
def leak_under_fill_facts(r, steps):
    """640 examples of 0.625 MiB are cached in epoch 1; besides, 0.3 MiB a step is kept."""
    cache, kept = {}, []
    for epoch in range(steps // 80):
        order = list(range(640))
        r.rng.shuffle(order)
        for i in range(80):
            r.work()
            for key in order[i * 8:i * 8 + 8]:
                if key not in cache:
                    cache[key] = block(0.625)
            kept.append(block(0.3))
            r.sample(epoch * 80 + i)


@program("leak", ["linear", "late_onset"], steps=400, spe=50, rate=0.4, low=1, high=10, observe=(20, 1, 2))
def leak_after_warm_up(r, steps):
    """Twelve steps of set-up (300 MiB), and 0.4 MiB a step kept from the first step on."""
    pool, kept = [], []
    def each(step):
        if step < 12:
            pool.append(block(25))
        kept.append(block(0.4))
    simple(r, steps, each)


@program("leak", ["late_onset", "linear"], steps=700, spe=50, rate=0.7, low=1, high=12, leak_from_step=250, observe=(260, 1, 2))
def late_leak(r, steps):
    """Nothing is kept for 250 steps, then 0.7 MiB a step."""
    kept = []
    simple(r, steps, lambda step: step >= 250 and kept.append(block(0.7)))


@program("leak", ["late_onset", "linear"], steps=900, spe=60, rate=0.2, low=1, high=14, leak_from_step=300, observe=(310, 1, 2))
def late_slow_leak(r, steps):
    """Nothing is kept for 300 steps, then 0.2 MiB a step."""
    kept = []
    simple(r, steps, lambda step: step >= 300 and kept.append(block(0.2)))


@program("leak", ["late_onset", "linear"], steps=660, spe=60, rate=0.5, low=1, high=12, leak_from_step=240,
         truth={"fill_mb": 480.0, "fill_steps": 60}, observe=(250, 1, 2))
def late_leak_after_fill(r, steps):
    """Cache filled in epoch 1 (8 MiB a step), flat to step 240, then 0.5 MiB a step kept."""
    cache, kept = [], []
    def each(step):
        if step < 60:
            cache.extend(block(1) for _ in range(8))
        if step >= 240:
            kept.append(block(0.5))
    simple(r, steps, each)


@program("leak", ["linear", "staircase"], steps=480, spe=40, rate=0.375, low=1, high=9, observe=(0, 16, 2))
def lump_leak_16(r, steps):
    """Every 16 steps a log flush keeps 6 MiB."""
    kept = []
    simple(r, steps, lambda step: step % 16 == 15 and kept.append(block(6)))


@program("leak", ["linear", "staircase"], steps=520, spe=65, rate=0.0, low=1, high=9, observe=(0, 1, 2))
def lump_leak_random(r, steps):
    """With chance 0.2 a step (a failed request whose traceback is kept) 2 MiB stay."""
    kept = []
    simple(r, steps, lambda step: r.rng.random() < 0.2 and kept.append(block(2)))
    return {"leak_mib_per_step": 2 * len(kept) / steps}


@program("leak", ["staircase", "linear"], steps=560, spe=45, rate=40 / 60, low=1, high=10,
         truth={"retained_per_checkpoint_mb": 40.0, "checkpoint_every": 60}, observe=(0, 60, 2))
def checkpoint_staircase(r, steps):
    """Every 60 steps a checkpoint copies 120 MiB and keeps 40 of them; epochs have 45 steps; all steps are train."""
    kept = []
    for step in range(steps):
        r.work()
        if step % 60 == 59:
            copy = [block(40) for _ in range(3)]
            kept.append(copy[0])
            r.sample(step)
            del copy
        else:
            r.sample(step)


@program("leak", ["staircase", "linear"], steps=450, spe=50, rate=20 / 35, low=1, high=12,
         eval_steps=list(range(35, 450, 35)), truth={"spike_mb": 150.0, "retained_per_eval_mb": 20.0}, observe=(0, 35, 2))
def eval_staircase_unaligned(r, steps):
    """Evaluation every 35 steps (epochs have 50): peak 150 MiB, 20 kept each time."""
    kept = []
    for step in range(steps):
        r.work()
        if step and step % 35 == 0:
            outputs = [block(10) for _ in range(15)]
            kept.append(outputs[:2])
            r.sample(step, "eval")
            del outputs
        else:
            r.sample(step)


@program("leak", ["staircase", "linear"], steps=480, spe=48, rate=0.625, low=1, high=10,
         truth={"retained_per_epoch_mb": 30.0}, observe=(0, 48, 2))
def epoch_iterator_leak(r, steps):
    """At each epoch's start a new iterator (30 MiB of index and workers' state) is made and the old one is kept."""
    kept = []
    simple(r, steps, lambda step: step % 48 == 0 and kept.append(block(30)))


@program("leak", ["linear"], steps=360, spe=60, rate=0.5, low=1, high=10, truth={"growing_field": "shmem_mb"}, observe=(0, 1, 2))
def shmem_leak(r, steps):
    """Anonymous shared mappings (tensors sent by workers) of 0.5 MiB, one a step, never unmapped."""
    kept = []
    def each(step):
        shared = mmap.mmap(-1, MIB // 2)
        shared.write(block(0.5))
        kept.append(shared)
    simple(r, steps, each)


@program("leak", ["linear", "sawtooth"], steps=880, spe=55, rate=0.25, low=1, high=8, observe=(0, 80, 2))
def leak_under_sawtooth_80(r, steps):
    """Cyclic garbage of 1.5 MiB a step, collected every 80 steps; 0.25 MiB a step is kept besides."""
    map_large()
    gc.disable()
    kept = []
    def each(step):
        Cycle(1.5)
        kept.append(block(0.25))
        if step % 80 == 79:
            gc.collect()
    simple(r, steps, each)


@program("leak", ["linear", "sawtooth"], steps=640, spe=64, rate=0.3, low=1, high=8, observe=(0, 1, 2))
def leak_under_irregular_sawtooth(r, steps):
    """Cyclic garbage of 2 MiB a step, collected after 15 to 60 steps; 0.3 MiB a step is kept besides."""
    map_large()
    gc.disable()
    kept, due, runs = [], 30, []
    for step in range(steps):
        r.work()
        Cycle(2)
        kept.append(block(0.3))
        if step == due:
            gc.collect()
            runs.append(step)
            due += r.rng.randint(15, 60)
        r.sample(step)
    return {"gc_runs_at_steps": runs}


@program("leak", ["linear"], steps=500, spe=50, rate=0.4, low=1, high=10,
         truth={"file_mb": 300.0, "growing_field": "anon_mb"}, observe=(0, 1, 3))
def leak_beside_file_pages(r, steps):
    """A 300 MiB file is paged in (1.5 MiB a step, complete at step 200), and 0.4 MiB a step of anonymous memory kept."""
    kept, (file, view) = [], data_file(300)
    def each(step):
        touch(view, step * 1.5, 1.5)
        kept.append(block(0.4))
    simple(r, steps, each)


@program("leak", ["linear", "late_onset"], steps=600, spe=60, rate=0.35, low=1, high=10,
         truth={"freed_mb": 200.0}, observe=(155, 1, 2))
def leak_hidden_by_release(r, steps):
    """200 MiB of start-up buffers are released over the first 150 steps while 0.35 MiB a step is kept throughout."""
    pool, kept = [block(2) for _ in range(100)], []
    def each(step):
        if step < 150 and pool and step % 3 < 2:
            pool.pop()
        kept.append(block(0.35))
    simple(r, steps, each)


# ---------------------------------------------------------------------------------------- growth nobody can judge yet
@program("growing", ["epoch_fill", "linear", "warm_up", "capped_cache"], steps=260, spe=400, low=1, high=10)
def fill_first_epoch(r, steps):
    """Two 1 MiB examples a step are decoded and kept; the data end at step 260 of an epoch of 400."""
    cache = []
    simple(r, steps, lambda step: cache.extend((block(1), block(1))))


@program("growing", ["epoch_fill", "linear", "warm_up", "capped_cache"], steps=300, low=1, high=10)
def fill_no_facts(r, steps):
    """1.5 MiB a step kept, and nothing is known about epochs."""
    cache = []
    simple(r, steps, lambda step: cache.append(block(1.5)))


@program("growing", ["epoch_fill", "linear", "warm_up", "capped_cache"], steps=300, low=1, high=10,
         examples=2800, batch_size=4, gradient_accumulation=2, spe=350, truth={"really": "a leak that cannot be told yet"})
def leak_first_epoch_only(r, steps):
    """0.8 MiB a step kept for good, seen for 300 steps of an epoch of 350."""
    kept = []
    simple(r, steps, lambda step: kept.append(block(0.8)))


# ------------------------------------------------------------------------------------------------------ fills, caches
@program("settled", ["epoch_fill"], steps=300, knee=75, spe=75, low=1, high=12, kind="pil_lazy_decode_retain",
         examples=1200, batch_size=8, gradient_accumulation=2, decoded_mib_per_example=0.5)
def fill_small_objects(r, steps):
    """1200 examples of 0.5 MiB, 16 a step, decoded when first seen and kept."""
    epoch_fill(r, steps, 1200, 16, lambda: 0.5)


@program("settled", ["epoch_fill"], steps=880, knee=400, spe=400, low=1, high=14, kind="pil_lazy_decode_retain",
         examples=3200, batch_size=8, gradient_accumulation=1, decoded_mib_per_example=0.12)
def fill_long_epoch(r, steps):
    """3200 examples of about 0.12 MiB, 8 a step, kept; the trace covers 2.2 epochs."""
    epoch_fill(r, steps, 3200, 8, lambda: r.rng.uniform(0.06, 0.18))


@program("settled", ["epoch_fill"], steps=320, knee=90, spe=90, low=4, high=40, held=True, kind="pil_lazy_decode_retain",
         examples=360, batch_size=4, gradient_accumulation=1, decoded_mib_per_example=2.0)
def fill_uneven_noisy(r, steps):
    """360 examples of very unequal size (0.2 to 12 MiB), 4 a step, kept; big temporaries besides."""
    epoch_fill(r, steps, 360, 4, lambda: min(12, 0.2 + r.rng.expovariate(1 / 1.8)))


def epoch_fill(r, steps, examples, per_step, size):
    cache, step = {}, 0
    while step < steps:
        order = list(range(examples))
        r.rng.shuffle(order)
        for i in range(0, examples, per_step):
            if step == steps:
                return
            r.work()
            for key in order[i:i + per_step]:
                if key not in cache:
                    cache[key] = block(size())
            r.sample(step)
            step += 1


@program("settled", ["epoch_fill", "warm_up", "capped_cache"], ["settled", "growing"], steps=600, knee=240, soft=True,
         spe=60, low=1, high=10)
def fill_with_replacement(r, steps):
    """600 examples of 0.8 MiB drawn with replacement, 10 a step, kept when first seen: 63 % in epoch 1, then ever less."""
    cache = {}
    def each(step):
        for _ in range(10):
            cache.setdefault(r.rng.randrange(600), None)
        for key in [k for k, v in cache.items() if v is None]:
            cache[key] = block(0.8)
    simple(r, steps, each)


@program("settled", ["epoch_fill", "warm_up", "staircase"], steps=420, knee=80, spe=80, low=1, high=10,
         eval_steps=[80, 160, 240, 320, 400])
def fill_and_eval_fill(r, steps):
    """Train set cached in epoch 1 (4 MiB a step), eval set (120 MiB) at the first evaluation at step 80, then nothing."""
    cache, held = [], []
    for step in range(steps):
        r.work()
        if step < 80:
            cache.append(block(4))
        if step and step % 80 == 0:
            if not held:
                held.extend(block(4) for _ in range(30))
            outputs = [block(4) for _ in range(15)]
            r.sample(step, "eval")
            del outputs
        else:
            r.sample(step)


@program("settled", ["epoch_fill", "warm_up", "capped_cache"], steps=500, knee=260, low=1, high=10)
def second_fill(r, steps):
    """A dataset is cached in steps 0 to 59 (5 MiB a step), a second one in steps 200 to 259; flat otherwise. No facts."""
    cache = []
    simple(r, steps, lambda step: (step < 60 or 200 <= step < 260) and cache.append(block(5)))


@program("settled", ["epoch_fill", "warm_up", "capped_cache"], steps=600, knee=300, spe=75, low=1, high=10,
         truth={"why": "the growth of the second dataset lasts one epoch, which is no proof of a leak"})
def second_fill_facts(r, steps):
    """As second_fill, epochs of 75 steps: first dataset in steps 0 to 74, second in 225 to 299."""
    cache = []
    simple(r, steps, lambda step: (step < 75 or 225 <= step < 300) and cache.append(block(3)))


@program("settled", ["capped_cache", "warm_up"], steps=500, knee=167, spe=110, low=1, high=10,
         truth={"capacity": 2000, "entry_mb": 0.25})
def shuffle_buffer(r, steps):
    """A shuffle buffer takes 12 examples of 0.25 MiB a step more than it gives until it holds 2000 (step 167, 1.5 epochs)."""
    buffer = collections.deque()
    def each(step):
        for _ in range(12):
            if len(buffer) == 2000:
                del buffer[r.rng.randrange(2000)]
            buffer.append(block(0.25))
    simple(r, steps, each)


@program("settled", ["capped_cache", "warm_up"], steps=360, knee=45, spe=120, low=1, high=10)
def prefetch_buffer(r, steps):
    """A prefetch queue gains three 2 MiB batches a step until it holds 135 (step 45 of an epoch of 120)."""
    queue = collections.deque(maxlen=135)
    simple(r, steps, lambda step: [queue.append(block(2)) for _ in range(3)])


@program("settled", ["capped_cache", "warm_up"], steps=420, knee=70, spe=140, low=1, high=10,
         truth={"capacity": 350, "entry_mb": 1.0})
def lru_uniform(r, steps):
    """LRU of 350 entries of 1 MiB, five new keys a step, each seen once per epoch: full at step 70."""
    cache = collections.OrderedDict()
    def each(step):
        for i in range(5):
            cache[(step * 5 + i) % 700] = block(1)
            if len(cache) > 350:
                cache.popitem(last=False)
    simple(r, steps, each)


@program("settled", ["capped_cache", "warm_up", "epoch_fill"], ["settled", "growing"], steps=500, knee=200, soft=True, low=1, high=10)
def lru_zipf(r, steps):
    """LRU of 300 entries of 1.2 MiB; keys drawn with 1/rank weights, 6 a step: fills ever more slowly, then full."""
    cache = collections.OrderedDict()
    weights = [1 / (k + 1) for k in range(2000)]
    def each(step):
        for key in r.rng.choices(range(2000), weights, k=6):
            if key in cache:
                cache.move_to_end(key)
            else:
                cache[key] = block(1.2)
                if len(cache) > 300:
                    cache.popitem(last=False)
    simple(r, steps, each)


@program("settled", ["capped_cache", "warm_up"], steps=400, knee=64, low=1, high=10, truth={"growing_field": "shmem_mb"})
def shmem_ring(r, steps):
    """A ring of 64 shared slots of 4 MiB, one first used per step, then reused."""
    ring = [mmap.mmap(-1, 4 * MIB) for _ in range(64)]
    def each(step):
        slot = ring[step % 64]
        slot.seek(0)
        slot.write(block(4))
    simple(r, steps, each)


@program("settled", ["staircase", "capped_cache", "warm_up"], steps=480, knee=120, spe=40, low=1, high=10,
         ambiguous_steps=[80, 168])
def last_three_checkpoints(r, steps):
    """A checkpoint of 60 MiB every 40 steps, the last three kept: three stairs, then flat (not to be told before step 165)."""
    kept = collections.deque(maxlen=3)
    def each(step):
        if step and step % 40 == 0:
            if len(kept) == 3:
                kept.popleft()
            kept.append([block(4) for _ in range(15)])
    simple(r, steps, each)


@program("settled", ["staircase", "warm_up", "capped_cache", "record_high"], steps=600, knee=240, spe=60, low=1, high=10,
         ambiguous_steps=[240, 370])
def context_curriculum(r, steps):
    """The context grows at steps 120 and 240, each time 80 MiB of activations more; then no more."""
    held = []
    def each(step):
        if step in (120, 240):
            held.append([block(4) for _ in range(20)])
    simple(r, steps, each)


@program("settled", ["warm_up", "staircase", "capped_cache"], steps=600, knee=300, low=1, high=10)
def weight_average_starts(r, steps):
    """At step 300 averaging starts: one copy of 200 MiB, flat before and after."""
    held = []
    simple(r, steps, lambda step: step == 300 and held.append(block(200)))


# ------------------------------------------------------------------------------------------------ decelerating growth
@program("settled", ["record_high", "warm_up", "capped_cache"], ["settled", "growing", "flat"], steps=500, knee=120,
         soft=True, spe=50, low=1, high=8)
def record_high_buffer(r, steps):
    """One buffer, made anew whenever a batch is larger than all before; lognormal sizes (median 60 MiB, sigma 0.6)."""
    record_high(r, steps, 60, 0.6)


@program("settled", ["record_high", "warm_up", "capped_cache"], ["settled", "growing", "flat"], steps=400, knee=100,
         soft=True, low=1, high=8)
def record_high_heavy(r, steps):
    """As record_high_buffer with a heavier tail (median 25 MiB, sigma 1.0), no facts."""
    record_high(r, steps, 25, 1.0)


def record_high(r, steps, median, sigma):
    state = {"size": 0.0, "buffer": None}
    highs = []
    def each(step):
        size = median * math.exp(r.rng.gauss(0, sigma))
        if size > state["size"]:
            state["buffer"] = None
            state["buffer"], state["size"] = block(size), size
            highs.append(step)
    simple(r, steps, each)
    return {"records_at_steps": highs}


@program("settled", ["warm_up", "record_high", "capped_cache", "epoch_fill"], ["settled", "growing"], steps=700,
         knee=300, soft=True, spe=70, low=1, high=8)
def log_growth(r, steps):
    """A kernel per new shape (4 MiB), new shapes with chance 30/n at step n: like log n, 0.17 MiB a step at the end."""
    cache = []
    simple(r, steps, lambda step: r.rng.random() < 30 / (step + 1) and cache.append(block(4)))


@program("growing", ["warm_up", "record_high", "capped_cache", "epoch_fill", "linear"], ["settled", "growing"], steps=600,
         soft=True, spe=60, low=1, high=8)
def sqrt_growth(r, steps):
    """A vocabulary that grows as the square root of what was read (400 MiB at step 600)."""
    cache = []
    def each(step):
        while len(cache) * 0.5 < 400 * math.sqrt((step + 1) / 600):
            cache.append(block(0.5))
    simple(r, steps, each)


@program("settled", ["warm_up", "capped_cache", "epoch_fill"], steps=450, knee=180, soft=True, low=1, high=10)
def saturating_warm_up(r, steps):
    """An allocator's pool: 1000 slots of 0.5 MiB, 17 drawn at random a step, touched for good (tau 60 steps)."""
    saturate(r, steps, 1000, 17, 0.5)


@program("settled", ["warm_up", "capped_cache", "epoch_fill"], ["settled", "growing"], steps=600, knee=450, soft=True,
         spe=50, low=1, high=10)
def saturating_slowly(r, steps):
    """1000 slots of 0.4 MiB, 6 drawn at random a step (tau 167 steps, epochs of 50)."""
    saturate(r, steps, 1000, 6, 0.4)


def saturate(r, steps, slots, draws, size):
    pool = {}
    def each(step):
        for _ in range(draws):
            key = r.rng.randrange(slots)
            if key not in pool:
                pool[key] = block(size)
    simple(r, steps, each)


# --------------------------------------------------------------------------------------------------------------- flat
@program("flat", ["none"], steps=300, low=1, high=12)
def big_then_flat(r, steps):
    """800 MiB before step 0, then only temporaries."""
    weights = [block(40) for _ in range(20)]
    r.start = time.perf_counter()
    simple(r, steps, lambda step: None)


@program("settled", ["warm_up", "capped_cache", "staircase", "none"], ["settled", "flat"], steps=350, knee=1, soft=True,
         spe=50, low=1, high=12)
def optimizer_state(r, steps):
    """250 MiB of weights before step 0; gradients and optimizer state (500 MiB) appear at step 1."""
    weights, state = block(250), []
    simple(r, steps, lambda step: step == 1 and state.extend(block(50) for _ in range(10)))


@program("flat", ["none", "warm_up"], ["flat", "settled"], steps=400, spe=50, low=1, high=12)
def falling(r, steps):
    """500 MiB of start-up buffers, one of 2 MiB released a step until step 250."""
    pool = [block(2) for _ in range(250)]
    simple(r, steps, lambda step: pool and pool.pop())


@program("flat", ["spikes", "none"], steps=450, spe=50, low=1, high=10)
def train_spikes(r, steps):
    """With chance 0.05 a step takes 100 to 350 MiB, given back at once."""
    for step in range(steps):
        r.work()
        spike = [block(10) for _ in range(r.rng.randint(10, 35))] if r.rng.random() < 0.05 else None
        r.sample(step)
        del spike


@program("flat", ["spikes", "none"], steps=420, spe=60, low=1, high=10, eval_steps=list(range(40, 420, 40)))
def eval_spikes(r, steps):
    """Evaluation every 40 steps takes 300 MiB and gives it all back."""
    for step in range(steps):
        r.work()
        if step and step % 40 == 0:
            outputs = [block(10) for _ in range(30)]
            r.sample(step, "eval")
            del outputs
        else:
            r.sample(step)


@program("flat", ["spikes", "none", "sawtooth"], ["flat", "sawtooth"], steps=440, spe=55, low=1, high=10,
         eval_steps=[s for s in range(440) if s % 55 >= 45])
def long_eval_phases(r, steps):
    """After each epoch of 45 train steps come 10 eval steps that hold 150 MiB more; all given back."""
    extra = None
    for step in range(steps):
        r.work()
        if step % 55 >= 45:
            extra = extra or [block(10) for _ in range(15)]
            r.sample(step, "eval")
        else:
            extra = None
            r.sample(step)


@program("flat", ["spikes", "none", "record_high"], ["flat", "growing"], steps=450, low=1, high=10)
def growing_peaks(r, steps):
    """Every 30 steps a peak, each 20 MiB higher than the last, given back at once: the floor is flat."""
    for step in range(steps):
        r.work()
        peak = [block(10) for _ in range(step // 30 * 2 + 4)] if step % 30 == 29 else None
        r.sample(step)
        del peak


@program("flat", ["none"], steps=500, spe=50, held=True, sleep=0.002)
def flat_autocorrelated(r, steps):
    """Temporaries whose total follows an AR(1) process (coefficient 0.95, sigma 15 MiB around 80)."""
    level = 0.0
    for step in range(steps):
        level = 0.95 * level + r.rng.gauss(0, 15 * math.sqrt(1 - 0.95**2))
        size = max(2, 80 + level)
        r.work(size * 0.98, size * 1.02, 0)
        r.sample(step)


@program("flat", ["none"], steps=300, spe=50, low=1, high=12, truth={"creep_mb": 5.0})
def flat_tiny_creep(r, steps):
    """A bounded metrics history (at most 320 records of 17 KiB) adds 5 MiB in 300 steps, far below the noise."""
    history = collections.deque(maxlen=320)
    simple(r, steps, lambda step: history.append(block(5 / 300)))


@program("flat", ["none", "spikes", "record_high"], ["flat", "settled"], steps=500, spe=100, held=True)
def flat_heavy_tailed(r, steps):
    """Temporaries with a Pareto tail (alpha 1.3, from 5 to at most 350 MiB)."""
    for step in range(steps):
        size = min(350, 5 * r.rng.paretovariate(1.3))
        r.work(size, size, 0)
        r.sample(step)


@program("flat", ["none", "spikes", "sawtooth"], ["flat", "sawtooth"], steps=500, spe=50, held=True)
def sorted_batches(r, steps):
    """Batches sorted by length, longest first in each epoch of 50 steps: falls from 120 to 10 MiB, jumps back."""
    for step in range(steps):
        size = 120 - 110 * (step % 50) / 49
        r.work(size * 0.93, size * 1.07, 0.1)
        r.sample(step)


# ----------------------------------------------------------------------------------------------------------- sawtooth
def sawtooth(r, steps, mib, gap):
    gc.disable()
    runs, due = [], gap()
    for step in range(steps):
        r.work()
        Cycle(mib)
        if step == due:
            gc.collect()
            runs.append(step)
            due += gap()
        r.sample(step)
    return {"gc_runs_at_steps": runs}


@program("sawtooth", ["sawtooth"], steps=300, low=1, high=8)
def sawtooth_15(r, steps):
    """Cyclic garbage of 5 MiB a step, collected every 15 steps."""
    return sawtooth(r, steps, 5, lambda: 15)


@program("sawtooth", ["sawtooth"], steps=700, low=1, high=8)
def sawtooth_120(r, steps):
    """Cyclic garbage of 1.2 MiB a step, collected every 120 steps."""
    return sawtooth(r, steps, 1.2, lambda: 120)


@program("sawtooth", ["sawtooth"], steps=600, spe=60, low=1, high=8)
def sawtooth_irregular(r, steps):
    """Cyclic garbage of 2 MiB a step, collected after 20 to 70 steps; epochs of 60."""
    return sawtooth(r, steps, 2, lambda: r.rng.randint(20, 70))


@program("sawtooth", ["sawtooth", "warm_up", "capped_cache"], ["sawtooth", "settled"], steps=500, knee=40, soft=True,
         low=1, high=8)
def sawtooth_after_warm_up(r, steps):
    """A warm-up of 300 MiB in 40 steps, under cyclic garbage of 2.5 MiB a step collected every 45 steps."""
    map_large()
    gc.disable()
    pool = []
    def each(step):
        if step < 40:
            pool.append(block(7.5))
        Cycle(2.5)
        if step % 45 == 44:
            gc.collect()
    simple(r, steps, each)


# ----------------------------------------------------------------------------------------------- files, copy on write
def data_file(mib):
    file = tempfile.NamedTemporaryFile(dir=FOLDER)  # of a real disk, unlike many temporary folders
    for _ in range(mib):
        file.write(os.urandom(4096) * 256)
    file.flush()
    os.fsync(file.fileno())
    return file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def touch(view, start_mib, mib):
    total = 0
    for offset in range(int(start_mib * MIB), min(int((start_mib + mib) * MIB), len(view)), 4096):
        total += view[offset]
    return total


@program("growing", ["file_pages"], ["settled", "growing", "flat"], steps=500, spe=50, low=1, high=12,
         truth={"file_mb": 450.0, "growing_field": "file_mb"})
def mmap_read_slowly(r, steps):
    """A mapped file of 450 MiB, 0.8 MiB more read each step to the end of the trace."""
    file, view = data_file(450)
    simple(r, steps, lambda step: touch(view, step * 0.8, 0.8))


@program("settled", ["file_pages"], ["settled", "growing", "flat"], steps=500, knee=250, soft=True, spe=50, low=1, high=12,
         truth={"file_mb": 300.0, "growing_field": "file_mb"})
def mmap_random_reads(r, steps):
    """Random reads of 64 KiB, 6 a step, from a mapped file of 300 MiB: the resident part saturates."""
    file, view = data_file(300)
    def each(step):
        for _ in range(6):
            touch(view, r.rng.randrange(300 * 16) / 16, 1 / 16)
    simple(r, steps, each)


@program("flat", ["none", "copy_on_write", "file_pages"], ["flat", "settled"], steps=400, low=1, high=8,
         truth={"file_mb": 300.0, "note": "rss stays, anon_mb rises by 300 as file_mb falls by 300"})
def private_map_written(r, steps):
    """Weights mapped privately and read before step 0, then overwritten 1.5 MiB a step: file pages turn anonymous."""
    file, view = data_file(300)
    private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    view.close()
    touch(private, 0, 300)
    r.start = time.perf_counter()
    def each(step):
        for offset in range(int(step * 1.5 * MIB), min(int((step + 1) * 1.5 * MIB), len(private)), 4096):
            private[offset] = 7
    simple(r, steps, each)


@program("flat", ["none", "copy_on_write"], steps=300, spe=60, low=1, high=8,
         truth={"note": "a child's RSS counts the inherited pages from the start; copying them does not change it"})
def forked_child_own_rss(r, steps):
    """A forked worker's own numbers: it inherits 250 MiB of objects and copies them by touching reference counts."""
    data = [bytes(3000) + i.to_bytes(8, "big") for i in range(85000)]
    down, up = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(down)
        r.start = time.perf_counter()
        keep = {}
        def each(step):
            for i in range(step * 1416 % 85000, min(step * 1416 % 85000 + 1416, 85000)):
                item = data[i]
        simple(r, steps, each)
        with os.fdopen(up, "w") as out:
            json.dump(r.rows, out)
        os._exit(0)
    os.close(up)
    with os.fdopen(down) as back:
        r.rows = json.load(back)
    os.waitpid(child, 0)


def workers(r, steps, count, objects, spe, shuffled):
    """Parent and forked workers in lock step; the numbers are the sum of their proportional shares (smaps_rollup)."""
    data = [bytes(3000) + i.to_bytes(8, "big") for i in range(objects)]
    pipes, children = [], []
    for w in range(count):
        (ask_read, ask), (done, done_write) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            rng = random.Random(99)  # all workers know the same order
            share = objects // spe
            for step in range(steps):
                if os.read(ask_read, 1) != b"g":
                    break
                if step % spe == 0:
                    order = list(range(objects))
                    if shuffled:
                        rng.shuffle(order)
                for i in order[step % spe * share:(step % spe + 1) * share]:
                    if not shuffled or hash((step, i)) % count == w:
                        item = data[i]
                os.write(done_write, b"d")
            os.read(ask_read, 1)  # stay until the last sample is taken
            os._exit(0)
        pipes.append((ask, done))
        children.append(child)

    def read():
        totals = dict.fromkeys(("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem"), 0)
        for pid in [os.getpid()] + children:
            for line in open(f"/proc/{pid}/smaps_rollup"):
                key, _, rest = line.partition(":")
                if key in totals:
                    totals[key] += int(rest.split()[0])
        return [v / 1024 for v in totals.values()]

    r.source, r.start = read, time.perf_counter()
    def each(step):
        for ask, done in pipes:
            os.write(ask, b"g")
        for ask, done in pipes:
            os.read(done, 1)
    simple(r, steps, each)
    for (ask, done), child in zip(pipes, children):
        os.write(ask, b"x")
        os.waitpid(child, 0)


@program("settled", ["copy_on_write", "epoch_fill", "warm_up", "capped_cache"], steps=300, knee=75, spe=75, low=1, high=8,
         truth={"numbers": "sum of PSS over parent and workers"})
def workers_copy_on_write(r, steps):
    """Two forked workers walk through 120 MiB of inherited objects in order, each copies it all in epoch 1."""
    workers(r, steps, 2, 40050, 75, False)


@program("settled", ["copy_on_write", "epoch_fill", "warm_up", "capped_cache"], ["settled", "growing"], steps=600, knee=240,
         soft=True, spe=60, low=1, high=8, truth={"numbers": "sum of PSS over parent and workers"})
def workers_copy_on_write_shuffled(r, steps):
    """Three forked workers each touch a random third of 120 MiB of objects per epoch: 1/3, 5/9, 19/27 ... copied."""
    workers(r, steps, 3, 40020, 60, True)


def main(arguments):
    if len(arguments) < 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    if arguments[1:2] == ["--run"]:
        return run(arguments[2])
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in arguments[1:] or PROGRAMS:
        if name not in PROGRAMS:
            sys.exit(f"error: no program `{name}`; there are {', '.join(PROGRAMS)}")
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, __file__, str(FOLDER), "--run", name])
        print(f"{name:36} exit {done.returncode} {time.perf_counter() - begin:6.1f} s", flush=True)


main(sys.argv[1:])
