"""Makes 4 MiB of garbage a step and collects it every 15 steps: 180 steps, as an HF trainer would print them, 40 to an epoch.

The garbage is in reference cycles, so only gc.collect() frees it, and it goes back to the system at once. The anonymous memory
of this one process rises by 60 MiB and falls back twelve times; the floor is flat.
"""
import ctypes
import gc
import time

M_MMAP_THRESHOLD = -3

# Without a fixed threshold malloc keeps what was freed once, and the memory would stay up.
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
gc.disable()
print("***** Running training *****\n  Num examples = 40\n  Instantaneous batch size per device = 1\n"
      "  Gradient Accumulation steps = 1\n  Total optimization steps = 180", flush=True)
for step in range(1, 181):
    cycle = [bytearray(4 << 20)]
    cycle.append(cycle)
    del cycle
    time.sleep(0.02)
    if step % 15 == 0:
        gc.collect()
    print(f"Step {step}: loss {1 / step:.3f}", flush=True)
