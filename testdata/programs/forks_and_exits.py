"""Forks a child every step that takes 20 MiB for 50 ms and exits: 180 steps of 20 ms, as an HF trainer would print them.

At most three children live at any time, so the memory of the tree jumps between 0 and 60 MiB above the parent's and is flat on
the whole; the parent itself is flat. At the end the parent exits while a grandchild, which has lost its own parent, lives on
with 20 MiB for half a second. The children die with the parent; the grandchild ends by itself.
"""
import ctypes
import os
import signal
import time

STEPS = 180
# On a busy machine children live longer; without a bound they would pile up.
MOST = 2
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


def hold(seconds):
    """Takes 20 MiB for some time, then ends this process."""
    held = bytearray(20 << 20)
    time.sleep(seconds)
    os._exit(0)


def reap(most):
    """Forgets the children that have ended, and waits until no more than so many live."""
    global living
    while living:
        child, _ = os.waitpid(-1, 0 if living > most else os.WNOHANG)
        if not child:
            return
        living -= 1


living = 0
print("***** Running training *****\n  Num examples = 30\n  Instantaneous batch size per device = 1\n"
      f"  Gradient Accumulation steps = 1\n  Total optimization steps = {STEPS}", flush=True)
for step in range(1, STEPS + 1):
    living += 1
    if os.fork() == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        hold(0.05)
    time.sleep(0.02)
    reap(MOST)
    print(f"Step {step}: loss {1 / step:.3f}", flush=True)

child = os.fork()
if child == 0:
    if os.fork() == 0:
        hold(0.5)
    os._exit(0)
os.waitpid(child, 0)
