"""The process that is watched: much touched memory, forked children, and a fixed piece of work on demand.

It answers one line of JSON to each line on standard input: `work` does one unit of work, `quit` ends it and its children.
Only the standard library is used. Nothing here knows who is watching.
"""

import argparse
import ctypes
import json
import mmap
import os
import sys
import time

PAGE = 4096
MIB = 1 << 20
GIB = 1 << 30

# One unit of work. The counts make each part take a tenth of a second or so on a machine of 2025.
COMPUTE_ROUNDS = 1_200_000
TOUCHED_PAGES = 65_536
TOUCHED_PASSES = 80
SMALL_BLOCKS = 250_000
KEPT_BLOCKS = 2_000
SMALL_BLOCK_BYTES = 1_000
MAPPINGS = 80
MAPPING_BYTES = 4 * MIB


def hold_memory(size):
    """Touches anonymous memory page by page; says how large its pages were asked to be."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages = "as the kernel likes"
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            pages = "4 KiB (MADV_NOHUGEPAGE)"
        except OSError as error:
            pages = f"as the kernel likes (MADV_NOHUGEPAGE: {error.strerror})"
    block = os.urandom(PAGE) * (MIB // PAGE)
    for offset in range(0, size, MIB):
        memory[offset : offset + MIB] = block[: min(MIB, size - offset)]
    return memory, pages


def fork_children(count):
    """Forks children that share all memory and sleep until their parent has gone, however it ends."""
    read_end, write_end = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
    os.close(read_end)
    return write_end


def compute():
    """Arithmetic in a loop: memory is left alone."""
    state = 12345
    for _ in range(COMPUTE_ROUNDS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return state


def touch(memory, stamp):
    """Writes one byte into each of the first 256 MiB's pages (or all, if there are fewer), several times over."""
    end = min(len(memory), TOUCHED_PAGES * PAGE)
    count = len(range(0, end, PAGE))
    stamps = bytes([stamp & 0xFF]) * count
    view = memoryview(memory)
    for _ in range(TOUCHED_PASSES):
        view[0:end:PAGE] = stamps
    view.release()


def allocate():
    """Small blocks from `malloc`, kept for a while and then freed."""
    kept = []
    for _ in range(SMALL_BLOCKS):
        kept.append(bytearray(SMALL_BLOCK_BYTES))
        if len(kept) == KEPT_BLOCKS:
            kept.clear()


def map_and_unmap():
    """Mappings that are made, touched and given back: each one changes the list that a page walk holds on to."""
    for _ in range(MAPPINGS):
        mapping = mmap.mmap(-1, MAPPING_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = memoryview(mapping)
        view[0:MAPPING_BYTES:PAGE] = bytes(MAPPING_BYTES // PAGE)
        view.release()
        mapping.close()


def timed(work, *arguments):
    begin = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begin


def do_unit(memory, stamp):
    """One unit of work, and how long it and its parts took."""
    wall, cpu = time.perf_counter(), time.process_time()
    parts = {
        "compute_s": timed(compute),
        "touch_s": timed(touch, memory, stamp),
        "allocate_s": timed(allocate),
        "map_s": timed(map_and_unmap),
    }
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, **parts}


def anonymous_huge_bytes():
    """Memory of this process in huge pages, to check that there is none."""
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
            return next(int(line.split()[1]) << 10 for line in rollup if line.startswith("AnonHugePages:"))
    except (OSError, StopIteration):
        return None


def die_with_parent():
    """Asks the kernel to end this process when the benchmark ends."""
    try:
        ctypes.CDLL(None).prctl(1, 15)
    except (OSError, AttributeError):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--children", type=int, default=20)
    parser.add_argument("--units", type=int, help="do this many units at once and end, instead of listening")
    arguments = parser.parse_args()
    die_with_parent()
    memory, pages = hold_memory(int(arguments.gib * GIB) // PAGE * PAGE)
    _alive = fork_children(arguments.children)
    say = lambda answer: print(json.dumps(answer), flush=True)
    say({"pid": os.getpid(), "pages": pages, "huge_bytes": anonymous_huge_bytes()})
    if arguments.units:
        # The first unit copies the pages that it writes to, since the children share them: it is not reported.
        do_unit(memory, 0)
        for stamp in range(arguments.units):
            say(do_unit(memory, stamp))
        return
    for stamp, line in enumerate(sys.stdin):
        if line.strip() != "work":
            break
        say(do_unit(memory, stamp))


if __name__ == "__main__":
    main()
