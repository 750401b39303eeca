"""One of three forked workers keeps 1 MiB a step: eight epochs of 20 steps, as an HF trainer would print them.

The parent, which prints the steps, and the other two workers are flat; the anonymous memory of the second worker grows by 1 MiB
a step, 160 MiB in all. The workers have their parent's command line and die with it.
"""
import ctypes
import multiprocessing
import os
import signal
import time

STEPS, STEP_TIME = 160, 0.02
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


def work(index, steps, done):
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    kept = []
    for _ in range(STEPS):
        os.read(steps, 1)
        if index == 1:
            kept.append(bytearray(1 << 20))
        os.write(done, b".")


print("***** Running training *****\n  Num examples = 20\n  Instantaneous batch size per device = 1\n"
      f"  Gradient Accumulation steps = 1\n  Total optimization steps = {STEPS}", flush=True)
orders, (done_out, done_in) = [os.pipe() for _ in range(3)], os.pipe()
context = multiprocessing.get_context("fork")
workers = [context.Process(target=work, args=(index, steps, done_in), daemon=True) for index, (steps, _) in enumerate(orders)]
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
