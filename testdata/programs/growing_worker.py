"""One of three forked workers keeps 1 MiB a step: eight epochs of 20 steps, as an HF trainer would print them.

The parent, which prints the steps, and the other two workers are flat; the anonymous memory of the second worker grows by 1 MiB
a step, 160 MiB in all. The workers have their parent's command line and die with it.
"""
import ctypes
import multiprocessing
import signal
import time

STEPS, STEP_TIME = 160, 0.02
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


def wait_for(step):
    """Sleeps until the step's time has come, which is the same in all processes."""
    time.sleep(max(0, start + step * STEP_TIME - time.monotonic()))


def work(index):
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    kept = []
    for step in range(1, STEPS + 1):
        wait_for(step)
        if index == 1:
            kept.append(bytearray(1 << 20))


print("***** Running training *****\n  Num examples = 20\n  Instantaneous batch size per device = 1\n"
      f"  Gradient Accumulation steps = 1\n  Total optimization steps = {STEPS}", flush=True)
start = time.monotonic()
workers = [multiprocessing.get_context("fork").Process(target=work, args=(index,), daemon=True) for index in range(3)]
for worker in workers:
    worker.start()
for step in range(1, STEPS + 1):
    wait_for(step)
    print(f"Step {step}: loss {1 / step:.3f}", flush=True)
for worker in workers:
    worker.join(1)
