#!/usr/bin/env python3
"""Makes a data dir of `model-garden serve` as a given binary writes it, for tests that open it with a later one.

usage: make_data_dir.py BINARY OUT.tar.xz

It has files, a finished job with its result, a failed, a paused, a running and two queued ones; server and jobs were killed at the end, as by a power cut. The folder was /tmp/garden-data
and the model /tmp/garden-models/tiny-model; names of files and jobs differ from call to call. expected.json in it says what each of them is.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = Path("/tmp/garden-data")
MODEL, BINARY = Path("/tmp/garden-models/tiny-model"), Path("/tmp/garden-models/model-garden")
ROW = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Row {}?"}]}, {"role": "assistant", "content": "answer {}"}]}


def ask(address, path, body=None, method=None, kind="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(address + path, data=data, method=method or ("POST" if data is not None else "GET"), headers={"content-type": kind})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def upload(address, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    line = "--border\r\ncontent-disposition: form-data; name=\"{}\"{}\r\n\r\n{}\r\n"
    body = line.format("purpose", "", "fine-tune") + line.format("file", '; filename="rows.jsonl"', text) + "--border--\r\n"
    return ask(address, "/v1/files", body.encode(), kind="multipart/form-data; boundary=border")["id"]


def order(address, file, epochs):
    recipe = {"threads": 1, "save_steps": 5, "save_total_limit": 1, "warmup_steps": 1, "lora_r": 2, "lora_alpha": 2}
    body = {"model": "tiny-model", "training_file": file, "seed": 11, "model_garden": {"recipe": recipe}}
    body["method"] = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": 2}}}
    return ask(address, "/v1/fine_tuning/jobs", body)["id"]


def wait(address, job, *states, of=lambda job: job["status"]):
    for _ in range(600):
        found = ask(address, f"/v1/fine_tuning/jobs/{job}")
        if of(found) in states:
            return found
        time.sleep(0.2)
    sys.exit(f"error: job {job} is {found['status']}, not one of {states}")


def steps(job):
    log = DATA / "jobs" / job / "out/log.jsonl"
    return sum('"loss"' in line for line in log.read_text().splitlines()) if log.exists() else 0


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for folder in (DATA, MODEL):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE.parent / "tiny-model", MODEL)
    shutil.copy(sys.argv[1], BINARY)
    server = subprocess.Popen([BINARY, "serve", "--port", "0", "--device", "cpu", "--data-dir", DATA, "--models", MODEL], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/tmp")
    address = next(word for line in server.stdout for word in line.split() if word.startswith("http://")).rstrip("/").removesuffix("/v1")
    rows = [json.loads(json.dumps(ROW).replace("{}", str(number))) for number in range(12)]
    good, broken = upload(address, rows), upload(address, [{"messages": [{"role": "user", "content": "no answer"}]}] * 3)
    finished = order(address, good, 1)
    wait(address, finished, "succeeded")
    failed = order(address, broken, 1)
    wait(address, failed, "failed")
    paused = order(address, good, 40)
    wait(address, paused, "running")
    while steps(paused) < 12:
        time.sleep(0.1)
    ask(address, f"/v1/fine_tuning/jobs/{paused}/pause", {})
    wait(address, paused, "paused", of=lambda job: job["model_garden"]["status"])
    running, queued = order(address, good, 400), [order(address, good, 2), order(address, good, 2)]
    wait(address, running, "running")
    while steps(running) < 12:
        time.sleep(0.1)
    # The server and everything that it started, all at once.
    mine = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and str(DATA).encode() in command(pid)]
    for pid in mine:
        os.kill(pid, signal.SIGKILL)
    server.wait()
    jobs = {finished: "succeeded", failed: "failed", paused: "paused", running: "running", **{job: "queued" for job in queued}}
    expected = {"made_by": subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True).stdout.strip(), "folder": str(DATA), "jobs": jobs, "files": [good, broken]}
    (DATA / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    with tarfile.open(sys.argv[2], "w:xz") as archive:
        # Not curves for TensorBoard, whose names have that of the machine.
        archive.add(DATA, "garden-data", filter=lambda entry: None if entry.name.endswith("/runs") else anonymous(entry))
    shutil.rmtree(DATA)
    shutil.rmtree(MODEL.parent)
    print(json.dumps(expected, indent=1))


def anonymous(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
