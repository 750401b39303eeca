"""Keeps 1 MiB a step for 120 steps and says which step it is at."""
import time

kept = []
for step in range(1, 121):
    kept.append(bytearray(1 << 20))
    time.sleep(0.01)
    print(f"Step {step}: loss {1 / step:.3f}", flush=True)
