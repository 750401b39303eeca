#!/usr/bin/env python3
"""Measures training steps on this machine's GPU and prints their ratios to the figures that are recorded in recorded.json: ours and the fastest peer's on an H200.

usage: bench.py --binary model-garden [--steps 6] [--record FILE]

Ratios below 1 are faster, or less memory, than what was recorded. The recorded figures are those of docs/benchmarks.md; another card has other ones, so that the ratios between rows say
more there than the ratios themselves. --record writes a file of the same form with what was measured now (the peer's figures stay), to compare a change with.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

RECORDED = Path(__file__).resolve().parent / "recorded.json"


def measure(binary, arguments, steps):
    ran = subprocess.run([binary, "bench", *arguments, "--device", "cuda", "--steps", str(steps), "--json"], capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{ran.stdout}{ran.stderr}".strip())
    found = json.loads(ran.stdout)
    for warning in found["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return {"ms": found["micro_step_ms"], "gpu_mib": found["memory"]["measured_bytes"] / 2**20}


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    recorded = json.loads(RECORDED.read_text())
    print(f"recorded: {recorded['machine']}, {recorded['date']}\n")
    print(f"{'model-garden bench':<64} {'ms now':>8} {'recorded':>9} {'ratio':>6} {'peer':>7} {'ratio':>6} {'GPU MiB':>8} {'ratio':>6}")
    for row in recorded["rows"]:
        now = measure(arguments.binary, row["arguments"], arguments.steps)
        peer = row.get("peer_ms")
        theirs = f"{peer:7.0f} {now['ms'] / peer:6.2f}" if peer else f"{'-':>7} {'-':>6}"
        print(f"{' '.join(row['arguments']):<64} {now['ms']:8.1f} {row['ms']:9.1f} {now['ms'] / row['ms']:6.2f} {theirs} {now['gpu_mib']:8.0f} {now['gpu_mib'] / row['gpu_mib']:6.2f}", flush=True)
        row.update({name: round(value, 1) for name, value in now.items()})
    if arguments.record:
        recorded.update(machine="this machine", date="now")
        arguments.record.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
