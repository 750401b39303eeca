"""Loses 1 MiB a step in native code, as a C++ extension would: eight epochs of 20 steps, as an HF trainer would print them.

The blocks come from malloc, are written to and never freed. No Python object knows of them: the anonymous memory of this one
process grows by 1 MiB a step, the same in every epoch, 160 MiB in all.
"""
import ctypes
import time

BLOCK = 64 << 10  # small enough to come from malloc's heap rather than from a mapping of its own

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

print("***** Running training *****\n  Num examples = 20\n  Instantaneous batch size per device = 1\n"
      "  Gradient Accumulation steps = 1\n  Total optimization steps = 160", flush=True)
for step in range(1, 161):
    for _ in range((1 << 20) // BLOCK):
        libc.memset(libc.malloc(BLOCK), 1, BLOCK)
    time.sleep(0.02)
    print(f"Step {step}: loss {1 / step:.3f}", flush=True)
