"""Programs that a guard could get wrong: odd.py MODE FOLDER [STEPS]

evaluates    150 MiB held, 150 MiB more for half a second every 10 steps and given back: must be left alone under 500 MiB.
deaf         connected to the event channel but deaf to `stop`; leaks 6 MiB a step and saves every 10 steps.
dicts        prints only {'loss': .., 'epoch': ..}, leaks, saves for two seconds when it gets SIGTERM.
daemon       becomes a daemon, in a session of its own, and leaks there; saves on SIGTERM.
again        starts itself again with the same words; the child leaks and saves on SIGTERM.
finale       all steps are done, then it takes 600 MiB.
slow         leaks 1 MiB a step and saves on SIGTERM.
orphans      starts children whose parent ends at once, all the time.

Checkpoints are FOLDER/checkpoint-N with one file, state.json. Each ends by itself.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

mode, folder = sys.argv[1], pathlib.Path(sys.argv[2])
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 200
kept, stop = [], []


def take(mib):
    block = bytearray(mib << 20)
    block[::4096] = b"\1" * len(block[::4096])
    return block


def save(step, seconds=0.0):
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "state.json", "w") as file:
        file.write('{"step": ')
        file.flush()
        time.sleep(seconds)
        file.write(f"{step}}}")


def say(text):
    try:
        print(text, flush=True)
    except OSError:  # nobody reads it any more
        pass


def train(mib_a_step, seconds=0.05, each=lambda step: None, save_seconds=0.0):
    for step in range(1, steps + 1):
        kept.append(take(mib_a_step))
        time.sleep(seconds)
        each(step)
        if stop:
            save(step, save_seconds)
            say("stopped")
            sys.exit(0)


def on_sigterm():
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))


if mode == "evaluates":
    kept.append(take(150))
    on_sigterm()

    def each(step):
        say(f"Step {step}: loss 1")
        if step % 10 == 0:
            evaluation = take(150)
            time.sleep(0.5)
            del evaluation
    train(0, each=each)
elif mode == "deaf":
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(os.environ["MODEL_GARDEN_EVENTS"])

    def each(step):
        channel.sendall(json.dumps({"step": step}).encode() + b"\n")
        if step % 10 == 0:
            save(step)
    train(6, each=each)
elif mode == "dicts":
    on_sigterm()
    train(4, each=lambda step: say(str({"loss": 1.0, "epoch": step / 50})), save_seconds=2)
elif mode == "daemon":
    if os.fork():
        sys.exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execv(sys.executable, [sys.executable, __file__, "leaks", str(folder), str(steps)])
elif mode == "again" and "AGAIN" not in os.environ:
    sys.exit(subprocess.call([sys.executable, *sys.argv], env={**os.environ, "AGAIN": "1"}))
elif mode in ("again", "leaks", "slow"):
    on_sigterm()
    train(1 if mode == "slow" else 4, each=lambda step: say(f"Step {step}: loss 1"))
elif mode == "finale":
    train(0, seconds=0.01, each=lambda step: say(f"Step {step}: loss 1"))
    kept.append(take(600))
    time.sleep(3)
elif mode == "orphans":
    def each(step):
        say(f"Step {step}: loss 1")
        for _ in range(20):
            subprocess.run(["sh", "-c", "true &"])
    train(0, seconds=0.01, each=each)
