"""A parent with 60 MiB of small objects forks three workers that look at ever more of them: 240 steps in 10 s, 40 to an epoch.

usage: forked_workers.py [MIB]

Looking at an object changes its reference count, so its page is copied. At first the four processes share one copy of the
objects, from step 160 on each has its own: counted once, memory grows by 1.1 MiB a step from 60 to 240 MiB (MIB to four times
MIB) and is flat for the last 80 steps. The resident memory of each process, and so their sum, is flat all the time. Nothing is
leaked. The workers have their parent's command line and die with it.
"""
import ctypes
import multiprocessing
import os
import signal
import sys
import time

MIB = int(sys.argv[1]) if len(sys.argv) > 1 else 60
STEPS, COPIED_AT, STEP_TIME = 240, 160, 0.04
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)
examples = [bytes(223) for _ in range(MIB * 4096)]  # 256 bytes each with its header


def work(steps, done):
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    looked_at = 0
    for step in range(1, STEPS + 1):
        os.read(steps, 1)
        until = len(examples) * min(step, COPIED_AT) // COPIED_AT
        for index in range(looked_at, until):
            examples[index]
        looked_at = until
        os.write(done, b".")


print("***** Running training *****\n  Num examples = 40\n  Instantaneous batch size per device = 1\n"
      f"  Gradient Accumulation steps = 1\n  Total optimization steps = {STEPS}", flush=True)
orders, (done_out, done_in) = [os.pipe() for _ in range(3)], os.pipe()
workers = [multiprocessing.get_context("fork").Process(target=work, args=(steps, done_in), daemon=True) for steps, _ in orders]
for worker in workers:
    worker.start()
for step in range(1, STEPS + 1):
    time.sleep(STEP_TIME)
    # A step is over when every worker has done it, however long that takes.
    for _, order in orders:
        os.write(order, b".")
    for _ in workers:
        os.read(done_out, 1)
    print(f"Step {step}: loss {1 / step:.3f}", flush=True)
for worker in workers:
    worker.join(1)
