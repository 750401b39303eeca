"""A watcher as one would write it with psutil: the memory of a process and its descendants, at a fixed pace.

Runs until it is told to stop (SIGINT or SIGTERM). Writes a line per sample to standard error, as the monitor does.
"""

import argparse
import signal
import sys
import time

import psutil


def resident(process):
    return process.memory_info().rss


def proportional(process):
    return process.memory_full_info().pss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds")
    parser.add_argument("--full", action="store_true", help="proportional shares (PSS) instead of resident memory")
    arguments = parser.parse_args()
    read = proportional if arguments.full else resident
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    root = psutil.Process(arguments.pid)
    due = time.monotonic()
    while True:
        total = 0
        for process in [root, *root.children(recursive=True)]:
            try:
                total += read(process)
            except psutil.NoSuchProcess:
                pass
        print(f"{total >> 20} MiB", file=sys.stderr, flush=True)
        # A watcher that cannot keep up goes on at once, without making up for what it missed.
        due = max(due + arguments.interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
