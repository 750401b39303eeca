#!/usr/bin/env python3
"""Disturbs `train-vision` a hundred times and resumes it: the result must have the bits of a run that nothing happened to, or the resume is refused.

usage: disturbed_training.py --binary PATH [--runs 100] [--first-seed 1] [--log FILE] [--events NAME...]

Each run has settings of its own (batch, accumulation, evaluation, checkpoints) and one event: asked to end, the trainer or both processes killed, a picture that
is broken behind its header (the run stops at it and is resumed without it, or goes on without it and is killed), a picture that goes away and comes back, a full disk, a
leak that comes to the memory limit, another base model. Compared are the log's losses, evaluations and left-out rows, and every byte of the adapter. The full disk
needs root, for a file system of its own; without, it is counted as left out. Each run's seed, event and outcome go to the log as a line of JSON.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TINY = ROOT / "testdata" / "tiny-model"
MIB = 2**20
PATIENCE = 300
EVENTS = ["ask", "kill-trainer", "kill-both", "broken-stop", "broken-skip", "gone", "full-disk", "leak", "other-base"]
REFUSED = 2
ENDED = {"ask": [130], "kill-trainer": [0], "kill-both": [-9], "broken-stop": [2], "broken-skip": [-9], "gone": [2], "full-disk": [2], "leak": [0], "other-base": [-9]}


class Missed(Exception):
    """The run was over before it could be disturbed."""


def draw(seed, events):
    rng = random.Random(seed)
    return {
        "seed": seed,
        "event": events[seed % len(events)],
        "rows": rng.randrange(8, 17),
        "batch_size": rng.choice([1, 2]),
        "accumulation": rng.choice([1, 2]),
        "save_steps": rng.choice([1, 3, 7]),
        "evaluates": rng.random() < 0.3,
        "normalisation": rng.choice(["batch", "tokens"]),
        "at": rng.uniform(0.1, 0.8),
        "row": rng.randrange(8),
    }


def break_picture(path):
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)


class Run:
    """One run's folder, and what is done in it."""

    def __init__(self, binary, folder, numbers):
        self.binary, self.folder, self.numbers = binary, folder, numbers
        self.base, self.rows = folder / "base", folder / "train.jsonl"
        shutil.copytree(TINY, self.base)
        lines = []
        for row in range(numbers["rows"]):
            shutil.copy(TINY / "sign.png", self.picture(row))
            lines.append(json.dumps({"prompt": f"Picture {row}?", "image": str(self.picture(row)), "response": str(row * 7)}) + "\n")
        self.rows.write_text("".join(lines))

    def picture(self, row):
        return self.folder / f"{row}.png"

    def words(self, output, more):
        numbers = self.numbers
        words = [self.binary, "train-vision", "--model", str(self.base), "--dataset", str(self.rows), "--output-dir", str(output), "--device", numbers["device"]]
        words += ["--epochs", "4", "--batch-size", str(numbers["batch_size"]), "--gradient-accumulation", str(numbers["accumulation"]), "--threads", "1"]
        words += ["--save-steps", str(numbers["save_steps"]), "--loss-normalisation", numbers["normalisation"], "--logging-steps", "1", "--warmup-steps", "0"]
        words += ["--learning-rate", "5e-3", "--lora-dropout", "0.1", "--max-pixels", "50176"]
        if numbers["evaluates"]:
            words += ["--eval-split", "0.2", "--eval-steps", "3", "--eval-answers", "1", "--max-new-tokens", "2"]
        return words + more

    def train(self, output, *more):
        return subprocess.run(self.words(output, list(more)), capture_output=True, text=True, timeout=PATIENCE)

    def disturbed(self, output, then, *more):
        """Starts it, waits for the step that was drawn, and does something; the exit code."""
        log = output.parent / f"{output.name}.err"
        with open(log, "w") as errors:
            guard = subprocess.Popen(self.words(output, list(more)), stdout=subprocess.DEVNULL, stderr=errors)
            try:
                while steps_of(output) < self.step():
                    if guard.poll() is not None:
                        raise Missed(log.read_text())
                    time.sleep(0.002)
                then(guard)
                return guard.wait(PATIENCE), log.read_text()
            finally:
                if guard.poll() is None:
                    guard.kill()
                    guard.wait()

    def steps(self):
        """At most; rows for evaluation are not among them. Each epoch has the same number."""
        batches = -(-self.numbers["rows"] // self.numbers["batch_size"])
        return 4 * -(-batches // self.numbers["accumulation"])

    def step(self):
        """The step at which it is disturbed."""
        return max(1, int(self.numbers["at"] * self.steps() * (0.8 if self.numbers["evaluates"] else 1.0)))


def log_of(output):
    try:
        text = (output / "log.jsonl").read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def steps_of(output):
    return max((line["step"] for line in log_of(output) if "loss" in line), default=0)


def bits(output):
    """What must be the same: the log without times, and the adapter."""
    def kept(line):
        return {name: value for name, value in line.items() if not name.endswith(("_seconds", "_runtime"))}

    return [kept(line) for line in log_of(output)], (output / "adapter_model.safetensors").read_bytes()


def trainer_of(guard):
    children = pathlib.Path(f"/proc/{guard.pid}/task/{guard.pid}/children").read_text().split()
    for pid in children:
        if b"train-worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return int(pid)
    raise Missed("no process trains any more")


def kill_trainer(guard):
    os.kill(trainer_of(guard), signal.SIGKILL)


def kill_both(guard):
    trainer = trainer_of(guard)
    os.kill(guard.pid, signal.SIGKILL)
    os.kill(trainer, signal.SIGKILL)


def check(binary, folder, numbers):
    run, event = Run(binary, folder, numbers), numbers["event"]
    whole, output, skip, problems = folder / "whole", folder / "out", [], []
    broken = run.picture(numbers["row"])
    if event.startswith("broken"):
        break_picture(broken)
        skip = ["--on-bad-image", "skip"]
    undisturbed = run.train(whole, *skip)
    if undisturbed.returncode != 0:
        return {"problems": [f"undisturbed: {undisturbed.stderr}"]}
    resume, mounted = [*skip, "--resume", "auto"], None
    if event == "broken-stop":
        ended = run.train(output)
        code, said = ended.returncode, ended.stderr
        if "train.jsonl:" not in said:
            problems.append("the row is not named")
    elif event == "leak":
        peak = json.loads((whole / "result.json").read_text())["resident"]["most"]
        # About six starts: the wait before each doubles.
        room = max(70 * MIB, run.steps() * 20_000_000 // 5)
        ended = run.train(output, "--memory-limit", f"{peak + room}B", "--debug-leak", "20MB", "--prefetch", "8MB")
        code, said = ended.returncode, ended.stderr
        resume = []
    elif event == "gone":
        away = folder / "away"
        code, said = run.disturbed(output, lambda _: broken.rename(away))
        away.rename(broken)
    elif event == "full-disk":
        mounted = folder / "disk"
        mounted.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(mounted)], capture_output=True).returncode != 0:
            return {"left_out": "a file system cannot be mounted here", "problems": []}
        output, ballast = mounted / "out", mounted / "ballast"

        def fill(_):
            # At once, or the run would be over; then what was given back meanwhile. Without a buffer, which would be written once more at the end.
            with open(ballast, "wb", buffering=0) as file:
                free = os.statvfs(mounted)
                for size in (free.f_bavail * free.f_frsize >> share for share in range(8)):
                    with contextlib.suppress(OSError):
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(4096))

        try:
            code, said = run.disturbed(output, fill)
            ballast.unlink()
            shutil.copytree(output, folder / "out")
        finally:
            subprocess.run(["umount", str(mounted)], check=True)
        output = folder / "out"
    else:
        then = {"ask": lambda guard: guard.terminate(), "kill-trainer": kill_trainer}.get(event, kill_both)
        code, said = run.disturbed(output, then, *skip)
    if event == "kill-trainer":
        resume = []
    if event in ("gone", "full-disk") and code == 0:
        raise Missed(said)
    result = {"code": code, "step": run.step(), "made": steps_of(output)}
    if code not in ENDED[event]:
        problems.append(f"exit code {code}: {said[-600:]}")
    if event == "other-base":
        weights = bytearray((run.base / "model.safetensors").read_bytes())
        weights[-1000] ^= 0x40
        (run.base / "model.safetensors").write_bytes(weights)
        # Killed before its first checkpoint it has nothing that belongs to the other base, and starts over.
        expected = REFUSED if any(output.glob("checkpoint-*")) else 0
        ended = run.train(output, *resume)
        if ended.returncode != expected or (expected == REFUSED and "base" not in ended.stderr):
            problems.append(f"another base model, {expected} expected: {ended.returncode} {ended.stderr[-600:]}")
        return {**result, "problems": problems}
    if resume:
        resumed = run.train(output, *resume)
        if resumed.returncode != 0:
            problems.append(f"resumed: {resumed.returncode} {resumed.stderr[-600:]}")
    if not problems and bits(output) != bits(whole):
        problems.append("the result has other bits than that of an undisturbed run")
    return {**result, "problems": problems}


def one(binary, numbers):
    # One that was over too early is drawn again at an earlier step.
    for share in (1.0, 0.6, 0.3, 0.1):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="garden-disturbed-"))
        try:
            return {**numbers, **check(binary, folder, {**numbers, "at": share * numbers["at"]})}
        except Missed as missed:
            problem = str(missed)
        except Exception as error:  # whatever it is, the run was not good
            return {**numbers, "problems": [f"{type(error).__name__}: {error}"]}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return {**numbers, "problems": [f"it was over before it could be disturbed: {problem[-600:]}"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--log", default="disturbed_training.jsonl")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=EVENTS)
    arguments = parser.parse_args()
    binary, good, left_out = os.path.abspath(arguments.binary), 0, 0
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.runs)
    with open(arguments.log, "w") as log:
        for number, seed in enumerate(seeds, 1):
            result = one(binary, {**draw(seed, arguments.events), "device": arguments.device})
            left_out += "left_out" in result
            good += not result["problems"]
            log.write(json.dumps(result) + "\n")
            log.flush()
            words = result.get("left_out") or result["problems"] or "good"
            print(f"{number:3} of {len(seeds)}: seed {seed}, {result['event']}, {result.get('made')} steps made, {words}", flush=True)
    print(f"{good - left_out} of {len(seeds)} runs good, {left_out} left out")
    sys.exit(0 if good == len(seeds) else 1)


if __name__ == "__main__":
    main()
