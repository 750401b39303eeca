"""A trainer to be guarded: it trains nothing, but steps, grows, saves, stops, dies and resumes as it is told, in HF's layout.

Memory is anonymous and exact: --base from the start, --grow more with each step, --save_memory more while a checkpoint is saved.

A checkpoint is written straight into DIR/checkpoint-N: model.safetensors, then optimizer.pt, and trainer_state.json last, so one
without that file is torn. `steps_done` in it lists every step the checkpoint holds, over all attempts: a step that was done after
the last checkpoint is lost, and must be done again. At --max_steps it saves, prints "done" and ends with 0; asked to stop, it
saves at the end of the step, prints "stopped" and ends with 0. It ends by itself in every case, and its workers with it.
"""
import argparse
import ctypes
import io
import json
import mmap
import os
import pickle
import random
import signal
import socket
import struct
import threading
import time
import zipfile

MIB = 1 << 20
PIECES = 10  # each file of a checkpoint is written in so many pieces
LATE_STEPS = 10  # with `--on_sigterm late` the flag is looked at in every so many steps
SEND_TIMEOUT_S = 5  # a watcher that does not read for so long is forgotten
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output_dir", required=True, metavar="DIR", help="checkpoints go to DIR/checkpoint-N")
    add("--max_steps", type=int, default=100, metavar="N")
    add("--step_time", type=float, default=0.05, metavar="SECONDS")
    add("--steps_per_epoch", type=int, default=0, metavar="K", help="print the banner with the facts of such a run; 0: no banner")
    add("--base", type=float, default=0, metavar="MIB", help="memory held from the start")
    add("--grow", type=float, default=0, metavar="MIB", help="memory added by each step and kept for ever")
    add("--settle_at", type=int, metavar="STEP", help="the last step that grows")
    add("--cache_steps", type=int, metavar="N", help="grow only in the first N steps of each process, as a cache that is filled anew does")
    add("--save_steps", type=int, default=0, metavar="K", help="save every K steps; 0: only at the end or when stopped")
    add("--save_time", type=float, default=0, metavar="SECONDS", help="how long a save takes")
    add("--save_memory", type=float, default=0, metavar="MIB", help="memory held only while saving")
    add("--keep", type=int, default=0, metavar="K", help="remove all but the last K checkpoints after each save, file by file")
    add("--own_layout", action="store_true", help="save adapter_model.safetensors and trainer_state.json alone")
    add("--on_sigterm", choices=["save", "die", "ignore", "late", "catch"], default="die",
        help="save and stop at the end of the step; die at once, as a plain HF Trainer does; ignore it; save and stop, but "
             f"only at the end of every {LATE_STEPS}th step; or catch it and go on (default: die)")
    add("--channel", action="store_true", help="talk over the socket in MODEL_GARDEN_EVENTS, if set, and obey its stop command")
    add("--resume_from_checkpoint", metavar="PATH", help="go on from this checkpoint, which must be whole")
    add("--die_while_saving", type=int, metavar="N", help="kill -9 itself in the middle of the Nth save, unless resumed")
    add("--fail_from", type=int, metavar="STEP", help="fail to go on from the checkpoint of this step")
    add("--crash_at", type=int, metavar="STEP", help="raise an error in this step, in every attempt that gets there")
    add("--workers", type=int, default=0, metavar="N", help="fork N idle loader workers, whose death is an error, as in torch")
    add("--jitter", type=int, metavar="SEED", help="step time, save time and growth vary by up to half")
    add("--quiet", action="store_true", help="print nothing (errors still go to standard error)")
    add("--ledger", metavar="FILE", help="append a line `PID STEP` for each step done")
    return parser.parse_args()


def take(mib):
    """Anonymous memory of that size, each page written to."""
    pages = round(mib * MIB / mmap.PAGESIZE)
    if pages == 0:
        return None
    block = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block[::mmap.PAGESIZE] = b"\1" * pages
    return block


def model_bytes(step):
    """A safetensors file with one tensor, filled with the step."""
    data = struct.pack("<4096f", *[step] * 4096)
    header = {"__metadata__": {"format": "pt"}, "weight": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def optimizer_bytes(step):
    """A zip file with the entries that torch.save makes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("optimizer/data.pkl", pickle.dumps({"state": {}, "param_groups": [{"lr": 1e-4, "step": step}]}, 2))
        archive.writestr("optimizer/byteorder", "little")
        archive.writestr("optimizer/data/0", bytes(4 * 4096))
        archive.writestr("optimizer/version", "3\n")
    return file.getvalue()


def restore(path, own_layout):
    """The steps that a checkpoint holds; an error if one of its files is torn."""
    with open(os.path.join(path, "trainer_state.json")) as file:
        state = json.load(file)
    name = "adapter_model.safetensors" if own_layout else "model.safetensors"
    with open(os.path.join(path, name), "rb") as file:
        if file.read() != model_bytes(state["global_step"]):
            raise RuntimeError(f"{path}: {name} is torn or of another step")
    if own_layout:
        return state["steps_done"]
    with zipfile.ZipFile(os.path.join(path, "optimizer.pt")) as archive:
        if archive.testzip():
            raise RuntimeError(f"{path}: optimizer.pt is torn")
    return state["steps_done"]


def start_workers(count):
    """Forks idle workers; when one ends, SIGCHLD raises an error in the parent wherever it is, as torch's DataLoader does."""
    parent, workers = os.getpid(), []

    def check(number, frame):
        for worker in workers:
            if os.waitpid(worker, os.WNOHANG)[0]:
                workers.remove(worker)
                raise RuntimeError(f"DataLoader worker (pid {worker}) is killed by signal: Terminated.")

    signal.signal(signal.SIGCHLD, check)
    for _ in range(count):
        worker = os.fork()
        if worker == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            while os.getppid() == parent:
                time.sleep(0.1)
            os._exit(0)
        workers.append(worker)
    return workers


def end_workers(workers):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def is_stop(line):
    try:
        return json.loads(line)["command"] == "stop"
    except (KeyError, TypeError, ValueError):
        return False


class Channel:
    """The event channel of docs/events.md. Without one, or when it breaks, nothing is told and nothing is lost."""

    def __init__(self, path):
        self.stop, self.socket = False, None
        try:
            if path:
                channel = socket.socket(socket.AF_UNIX)
                channel.connect(path)
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
                threading.Thread(target=self.listen, args=(channel.makefile("rb"),), daemon=True).start()
                self.socket = channel
        except OSError:
            pass

    def listen(self, lines):
        try:
            for line in lines:
                self.stop |= is_stop(line)
        except OSError:
            pass

    def tell(self, **message):
        try:
            if self.socket:
                self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.socket = None


class Trainer:
    def __init__(self, arguments):
        self.arguments = arguments
        self.terminated = False
        if arguments.on_sigterm in ("save", "late"):
            signal.signal(signal.SIGTERM, self.on_sigterm)
        elif arguments.on_sigterm == "catch":
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        elif arguments.on_sigterm == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        resumed = arguments.resume_from_checkpoint
        if resumed and os.path.basename(resumed) == f"checkpoint-{arguments.fail_from}":
            raise RuntimeError(f"cannot go on from {resumed}")
        self.steps_done = restore(resumed, arguments.own_layout) if resumed else []
        self.step = self.saved_at = self.steps_done[-1] if self.steps_done else 0
        self.first = self.step
        self.saves_until_death = None if resumed else arguments.die_while_saving
        self.random = random.Random(f"{arguments.jitter} {self.step}")  # another course in each attempt
        self.kept = [take(arguments.base)]
        self.workers = start_workers(arguments.workers) if arguments.workers else []
        # Its thread must not be there yet when workers are forked.
        self.channel = Channel(os.environ.get("MODEL_GARDEN_EVENTS") if arguments.channel else None)
        self.ledger = arguments.ledger and os.open(arguments.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def on_sigterm(self, number, frame):
        self.terminated = True

    def say(self, text):
        if not self.arguments.quiet:
            print(text, flush=True)

    def vary(self, value):
        return value if self.arguments.jitter is None else value * self.random.uniform(0.5, 1.5)

    def must_stop(self):
        every = LATE_STEPS if self.arguments.on_sigterm == "late" else 1
        return self.channel.stop or self.terminated and self.step % every == 0

    def train(self):
        arguments = self.arguments
        facts = {"total_steps": arguments.max_steps}
        if arguments.steps_per_epoch:
            facts["steps_per_epoch"] = arguments.steps_per_epoch
            self.say(f"***** Running training *****\n  Num examples = {arguments.steps_per_epoch}\n  Instantaneous batch size per "
                     "device = 1\n  Gradient Accumulation steps = 1\n  Total optimization steps = "
                     f"{arguments.max_steps}")
        self.channel.tell(facts=facts)
        while self.step < arguments.max_steps:
            self.train_step()
            stop = self.must_stop()
            if stop or arguments.save_steps and self.step % arguments.save_steps == 0:
                self.save()
            if stop or self.must_stop():  # asked while it was saving: this step is safe already
                break
        self.save()
        end_workers(self.workers)
        self.say("done" if self.step >= arguments.max_steps else "stopped")

    def train_step(self):
        arguments, step = self.arguments, self.step + 1
        time.sleep(self.vary(arguments.step_time))
        if step == arguments.crash_at:
            raise RuntimeError(f"crash at step {step}")
        is_full = arguments.cache_steps is not None and step > self.first + arguments.cache_steps
        if (arguments.settle_at is None or step <= arguments.settle_at) and not is_full:
            self.kept.append(take(self.vary(arguments.grow)))
        self.step = step
        self.steps_done.append(step)
        if self.ledger:
            os.write(self.ledger, f"{os.getpid()} {step}\n".encode())
        self.channel.tell(step=step)
        self.say(f"Step {step}: loss {1 / step:.3f}")

    def save(self):
        """Saves a checkpoint of this step, unless there is one from this attempt or the one resumed from."""
        if self.step == self.saved_at:
            return
        folder = os.path.join(self.arguments.output_dir, f"checkpoint-{self.step}")
        self.say(f"Saving model checkpoint to {folder}")
        if self.saves_until_death:
            self.saves_until_death -= 1
        held = take(self.arguments.save_memory)
        pause = self.vary(self.arguments.save_time) / (2 * PIECES)
        os.makedirs(folder, exist_ok=True)
        files = [("model.safetensors", model_bytes(self.step)), ("optimizer.pt", optimizer_bytes(self.step))]
        if self.arguments.own_layout:
            files = [("adapter_model.safetensors", model_bytes(self.step))]
        for name, content in files:
            with open(os.path.join(folder, name), "wb", buffering=0) as file:
                for piece in range(PIECES):
                    if name == "optimizer.pt" and piece == PIECES // 2 and self.saves_until_death == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    file.write(content[len(content) * piece // PIECES:len(content) * (piece + 1) // PIECES])
                    time.sleep(pause)
        with open(os.path.join(folder, "trainer_state.json"), "w") as file:
            json.dump({"global_step": self.step, "max_steps": self.arguments.max_steps, "steps_done": self.steps_done}, file)
        if held:
            held.close()
        self.saved_at = self.step
        self.channel.tell(event="checkpoint", path=folder)
        if self.arguments.keep:
            self.rotate()

    def rotate(self):
        """Removes old checkpoints, the weights first; slowly, as it is with large files on a network."""
        numbers = sorted(int(name.split("-")[1]) for name in os.listdir(self.arguments.output_dir) if name.startswith("checkpoint-"))
        for number in numbers[:-self.arguments.keep]:
            folder = os.path.join(self.arguments.output_dir, f"checkpoint-{number}")
            for name in sorted(os.listdir(folder)):
                os.remove(os.path.join(folder, name))
                time.sleep(self.arguments.save_time / 3)
            os.rmdir(folder)


if __name__ == "__main__":
    Trainer(parse_arguments()).train()
