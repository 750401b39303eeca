"""Scores detectors of memory leaks on labelled recordings: ours, and the usual ones.

    python3 bench/detectors.py --binary target/release/model-garden
    python3 bench/detectors.py --binary target/release/model-garden --traces FOLDER      # recordings of testdata/programs/record_traces.py
    python3 bench/detectors.py --add mine.py      # a detector of your own: a function `detect(steps, mebibytes, steps_per_epoch)` that returns True for a leak

A recording (NAME.csv) leaks if its label (NAME.json) has `leak_mib_per_step` above 0. Every detector sees the same memory, anonymous and shared, of every sample, at ten moments: after
the first tenth of a recording, the first two tenths, and so on. An alarm at any of them on a recording that does not leak is a false one: nobody who watches a run
knows when to ask. Needs only Python's standard library.
"""
import argparse
import csv
import importlib.util
import json
import math
import statistics
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MOMENTS = 10
# Two-sided 1 % of the normal distribution.
CERTAIN = 2.576
# What a baseline calls growth worth an alarm: as much as our judge needs for a leak.
MATERIAL_MIB = 32
# Mann-Kendall compares all pairs.
MOST_POINTS = 500


def last_above_first(steps, mebibytes, steps_per_epoch):
    """The memory now against the memory at the start."""
    return mebibytes[-1] > 1.1 * mebibytes[0]


def slope_and_error(steps, mebibytes):
    mean_step, mean = statistics.fmean(steps), statistics.fmean(mebibytes)
    spread = sum((step - mean_step) ** 2 for step in steps)
    if spread == 0 or len(steps) < 3:
        return 0.0, math.inf
    slope = sum((step - mean_step) * (value - mean) for step, value in zip(steps, mebibytes)) / spread
    left = sum((value - mean - slope * (step - mean_step)) ** 2 for step, value in zip(steps, mebibytes))
    return slope, math.sqrt(left / (len(steps) - 2) / spread)


def linear_fit(steps, mebibytes, steps_per_epoch):
    """A line by least squares: rises significantly (1 %)."""
    slope, error = slope_and_error(steps, mebibytes)
    return slope > CERTAIN * error


def linear_fit_material(steps, mebibytes, steps_per_epoch):
    """The same, and by a material amount over the recording."""
    return linear_fit(steps, mebibytes, steps_per_epoch) and slope_and_error(steps, mebibytes)[0] * (steps[-1] - steps[0]) > MATERIAL_MIB


def mann_kendall(steps, mebibytes, steps_per_epoch):
    """Mann-Kendall's test for a rising trend (1 %), with ties."""
    every = -(-len(mebibytes) // MOST_POINTS)
    values = mebibytes[::every]
    count = len(values)
    score = sum((later > earlier) - (later < earlier) for place, earlier in enumerate(values) for later in values[place + 1 :])
    ties = [values.count(value) for value in set(values)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(tie * (tie - 1) * (2 * tie + 5) for tie in ties)) / 18
    return variance > 0 and (score - 1) / math.sqrt(variance) > CERTAIN


def mann_kendall_after_warm_up(steps, mebibytes, steps_per_epoch):
    """The same on the second half: start-up and first epochs are often over by then."""
    half = len(steps) // 2
    return half > 3 and mann_kendall(steps[half:], mebibytes[half:], steps_per_epoch)


def after_first_epoch(steps, mebibytes, steps_per_epoch):
    """The line, on samples after the first epoch only, where that is known."""
    if steps_per_epoch is None:
        return False
    kept = [(step, value) for step, value in zip(steps, mebibytes) if step > steps[0] + steps_per_epoch]
    return len(kept) > 4 and linear_fit_material([step for step, _ in kept], [value for _, value in kept], steps_per_epoch)


DETECTORS = [last_above_first, linear_fit, linear_fit_material, mann_kendall, mann_kendall_after_warm_up, after_first_epoch]


class Recording:
    def __init__(self, path):
        self.name = path.stem
        self.label = json.loads(path.read_text())
        with open(path.with_suffix(".csv"), newline="") as file:
            self.header, *self.rows = csv.reader(file)
        column = self.header.index
        self.steps = [float(row[column("step")]) for row in self.rows]
        self.mebibytes = [float(row[column("anon_mb")]) + float(row[column("shmem_mb")]) for row in self.rows]
        self.leaks = (self.label.get("leak_mib_per_step") or 0) > 0
        self.steps_per_epoch = self.label.get("steps_per_epoch") or (
            math.ceil(self.label["examples"] / self.label["batch_size"] / (self.label.get("gradient_accumulation") or 1)) if self.label.get("examples") else None
        )

    def moments(self):
        return sorted({max(2, len(self.rows) * moment // MOMENTS) for moment in range(1, MOMENTS + 1)})


def ours(binary, recording, rows, folder):
    """Our verdict on the first rows."""
    file = folder / "trace.csv"
    with open(file, "w", newline="") as out:
        csv.writer(out).writerows([recording.header, *recording.rows[:rows]])
    words = [binary, "diagnose", str(file), "--format", "json"]
    if recording.steps_per_epoch:
        words += ["--steps-per-epoch", str(recording.steps_per_epoch)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)["verdict"] == "leak"


def score(name, meaning, recordings, ask):
    """A row of the table: alarms of a detector, `ask(recording, rows)`."""
    found, false_at_end, false_ever, moments = 0, 0, 0, []
    for recording in recordings:
        alarms = [ask(recording, rows) for rows in recording.moments()]
        if recording.leaks:
            found += alarms[-1]
            moments += [(alarms.index(True) + 1) / len(alarms)] if alarms[-1] else []
        else:
            false_at_end += alarms[-1]
            false_ever += any(alarms)
    leaks = sum(recording.leaks for recording in recordings)
    healthy = len(recordings) - leaks
    when = f"{100 * statistics.median(moments):.0f} %" if moments else "-"
    print(f"| {name} | {meaning} | {found} of {leaks} | {false_at_end} of {healthy} | {false_ever} of {healthy} | {when} |", flush=True)


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--binary", help="the model-garden to score; without it, only the others")
    words.add_argument("--traces", type=Path, default=REPOSITORY / "testdata/traces")
    words.add_argument("--add", type=Path, help="a Python file with a function `detect`")
    given = words.parse_args()
    recordings = [Recording(path) for path in sorted(given.traces.glob("*.json")) if path.with_suffix(".csv").exists()]
    detectors = list(DETECTORS)
    if given.add:
        spec = importlib.util.spec_from_file_location("added", given.add)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.detect.__doc__ = module.detect.__doc__ or "yours"
        detectors.append(module.detect)
    print("| detector | what it asks | leaks found | false alarms on whole recordings | false alarms at some moment | share of a leak's recording until its alarm |")
    print("| --- | --- | --- | --- | --- | --- |")
    for detector in detectors:
        name = detector.__name__.replace("_", " ")
        score(name, detector.__doc__.rstrip("."), recordings, lambda recording, rows: bool(detector(recording.steps[:rows], recording.mebibytes[:rows], recording.steps_per_epoch)))
    if given.binary:
        with tempfile.TemporaryDirectory() as folder:
            score("`model-garden diagnose`", "the verdict is `leak`", recordings, lambda recording, rows: ours(given.binary, recording, rows, Path(folder)))


if __name__ == "__main__":
    main()
