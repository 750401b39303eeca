"""Pieces with which something goes wrong, each in its own way, for the tests of what is said and left behind then."""
import ctypes
import os
import signal
import sys
import time


class Numbers:
    """A dataset of numbers; `at` is called with each of them."""

    def __init__(self, length=60, at=None):
        self.length = length
        self.at = at

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        if self.at is not None:
            self.at(number)
        return number


def raise_at(wanted):
    def at(number):
        if number == wanted:
            raise ValueError(f"example {number} is torn")

    return at


def raising_dataset():
    return {"dataset": Numbers(at=raise_at(31)), "processor": str, "collator": "".join, "workers": 2}


def generator():
    return {"dataset": ({"number": number} for number in range(60)), "processor": lambda example: example}


def raising_processor():
    return {"dataset": Numbers(), "processor": raise_at(31), "collator": list}


def raising_collator():
    def collate(numbers):
        raise KeyError("pixel_values")

    return {"dataset": Numbers(), "processor": str, "collator": collate, "callbacks": [print]}


def raising_after_a_cache():
    kept = {}
    return {**raising_collator(), "dataset": Numbers(at=lambda number: kept.setdefault(number, b"x" * (number + 300_000)))}


def raising_after_a_leak():
    kept = []
    return {**raising_collator(), "dataset": Numbers(at=lambda number: kept.append(b"x" * (number + 300_000)))}


def raising_model():
    def model(batch):
        raise RuntimeError("shapes do not match")

    return {"dataset": Numbers(), "collator": list, "model": model, "callbacks": [print]}


def raising_callback():
    return {"dataset": Numbers(), "callbacks": [raise_at(12)]}


def raising_worker():
    """Raises in loader workers only."""
    import multiprocessing

    def at(number):
        if multiprocessing.parent_process() is not None:
            raise_at(31)(number)

    return {"dataset": Numbers(at=at), "workers": 2}


def unpicklable_examples():
    """What the processor gets cannot be sent to another process."""

    class Functions(Numbers):
        def __getitem__(self, number):
            return lambda: number

    return {"dataset": Functions(), "processor": lambda example: example()}


def killed():
    return {"dataset": Numbers(), "processor": lambda number: os.kill(os.getpid(), signal.SIGKILL)}


def crashing():
    return {"dataset": Numbers(), "processor": lambda number: ctypes.string_at(0)}


def leaving():
    def leave(number):
        print("I have had enough")
        sys.exit(7)

    return {"dataset": Numbers(), "processor": leave}


def killed_worker():
    """Dies in loader workers only."""
    import multiprocessing

    def at(number):
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    return {"dataset": Numbers(at=at), "workers": 2}


def hanging():
    return {"dataset": Numbers(), "processor": lambda number: time.sleep(600), "collator": list, "callbacks": [print]}


def printing():
    return {"dataset": Numbers(), "processor": lambda number: print("x" * 100_000)}


def closing():
    def close(number):
        print("buffered, and nowhere to go")
        try:
            os.close(1)
        except OSError:
            pass

    return {"dataset": Numbers(), "processor": close}


def changing_folder():
    os.chdir("/")
    return {"dataset": Numbers(), "processor": lambda number: os.chdir("/proc")}


def few():
    return {"dataset": Numbers(20)}


def too_few():
    return {"dataset": Numbers(3)}


def same():
    """The test that cannot show a cache of examples: one example, again and again."""
    return {"dataset": [object()] * 60, "processor": str}


def short_iterable():
    class Short:
        def __iter__(self):
            return iter(range(30))

    return {"dataset": Short()}


def nonsense():
    return 42


def nothing():
    return None


def misspelt():
    return {"dataset": Numbers(), "colator": list}


def failing():
    return {}["checkpoint"]


def leaking():
    kept = []
    return {"dataset": Numbers(1000), "processor": lambda number: kept.append(b"x" * (8 << 20))}


def slow():
    """Long enough to be interrupted while pieces alone are fed by other processes."""

    def work(value):
        time.sleep(0.01)
        return value

    return {"dataset": Numbers(1000), "processor": work, "collator": work}


def only_workers():
    """Long enough to be interrupted while loader workers are there."""
    return {"dataset": Numbers(1000, at=lambda number: time.sleep(0.005)), "workers": 2}


def threaded():
    """A dataset that reads ahead in a thread, which is started when it is made."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    return {"dataset": Numbers(at=lambda number: pool.submit(int).result()), "processor": str}
