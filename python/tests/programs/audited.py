"""Loops with known causes for the tests of `audit`; each `yield` ends a step. Sizes come from the test by way of settings."""
import gc
import os
import signal
import sys
import time

# Decided when the interpreter starts: setting PYTHONNOUSERSITE later changes nothing.
STARTED_WITH = sys.flags.no_user_site


class Node:
    """Part of a cycle that only the collector frees."""


def leak(size=1 << 20, keep=True):
    kept = []
    while True:
        block = bytearray(size)
        if keep:
            kept.append(block)
        yield


def cycles(size=1 << 20):
    while True:
        one, other = Node(), Node()
        one.other, other.other = other, one
        one.payload = bytearray(size)
        del one, other
        yield


def many_objects(objects=200_000):
    kept = [[number] for number in range(objects)]
    while kept:
        sum(range(20_000))
        yield


def flag(size=1 << 20):
    kept = []
    while True:
        if not STARTED_WITH:
            kept.append(bytearray(size))
        yield


def in_a_child(size=1 << 20):
    """The growth is in a process that the loop starts."""
    orders, their = os.pipe()
    answers, mine = os.pipe()
    if os.fork() == 0:
        kept = []
        while os.read(orders, 1):
            kept.append(bytearray(size))
            os.write(mine, b".")
        os._exit(0)
    while True:
        os.write(their, b"g")
        os.read(answers, 1)
        yield


CACHE = []


def cached(size=1 << 20):
    """Grows in a list of the module, which a function can empty."""
    while True:
        CACHE.append(bytearray(size))
        yield


def clear_cache():
    CACHE.clear()


def raising(at=7):
    step = 0
    while True:
        step += 1
        if step == at:
            raise ValueError("a step that went wrong")
        yield


def ending(after=9):
    for _ in range(after):
        yield


def killed():
    yield
    os.kill(os.getpid(), signal.SIGKILL)
    yield


def hanging(marker=None):
    """Tells its process id and that of a child of its own, and never ends a step."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    if marker:
        with open(marker + ".part", "w") as file:
            file.write(f"{os.getpid()} {child}")
        os.rename(marker + ".part", marker)
    yield
    time.sleep(600)
    yield


def no_generator():
    gc.collect()
