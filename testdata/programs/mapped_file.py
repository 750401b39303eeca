"""Maps a file of 150 MiB and reads 1 MiB more of it a step: 150 steps, as an HF trainer would print them, 30 to an epoch.

usage: mapped_file.py [FOLDER]

Only clean file pages grow, by 1 MiB a step: the kernel can take them back whenever it wants. Anonymous memory is flat. The file
is sparse (it costs no disk), lies in FOLDER or else the folder for temporary files, and is deleted at the end, also on SIGTERM.
On a tmpfs the pages would be shared memory instead.
"""
import mmap
import signal
import sys
import tempfile
import time

STEPS, PART = 150, 1 << 20

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: sys.exit(128 + number))
with tempfile.NamedTemporaryFile(prefix="mapped_file-", dir=sys.argv[1] if len(sys.argv) > 1 else None) as file:
    file.truncate(STEPS * PART)
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    print("***** Running training *****\n  Num examples = 30\n  Instantaneous batch size per device = 1\n"
          f"  Gradient Accumulation steps = 1\n  Total optimization steps = {STEPS}", flush=True)
    for step in range(1, STEPS + 1):
        for place in range((step - 1) * PART, step * PART, mmap.PAGESIZE):
            mapped[place]
        time.sleep(0.02)
        print(f"Step {step}: loss {1 / step:.3f}", flush=True)
