"""A server of our own for benchmarks, with the tiny model of testdata/, and rows to train it on."""
import base64
import collections
import json
import os
import subprocess
import threading
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURES = os.path.join(ROOT, "testdata", "data", "recorded", "pictures")
TICK = os.sysconf("SC_CLK_TCK")


def rows(count):
    names = [os.path.join(PICTURES, name) for name in os.listdir(PICTURES) if name.endswith(".png")]
    with open(min(names, key=os.path.getsize), "rb") as file:
        url = "data:image/png;base64," + base64.b64encode(file.read()).decode()
    for number in range(count):
        question = [{"type": "text", "text": f"Row {number}?"}, {"type": "image_url", "image_url": {"url": url}}]
        yield json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": f"answer {number % 5}"}]}) + "\n"


class Server:
    def __init__(self, binary, folder, *more, keys=(), processors=None):
        self.folder, self.key = folder, keys[0] if keys else None
        words = [binary, "serve", "--port", "0", "--device", "cpu", "--data-dir", folder, "--models", os.path.join(ROOT, "testdata", "tiny-model"), *more]
        own = os.sched_getaffinity(0)
        # A process has the processors of the one that starts it, and looks how many they are.
        os.sched_setaffinity(0, processors or own)
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, universal_newlines=True, env={**os.environ, "MODEL_GARDEN_API_KEYS": ",".join(keys)})
        os.sched_setaffinity(0, own)
        self.said = collections.deque(maxlen=20)
        # The queue may have something to say before.
        first = next((line for line in self.process.stderr if "http://" in line), None)
        if first is None:
            raise SystemExit(f"error: the server does not start: exit code {self.process.wait()}")
        self.address = first.split("http://")[1].split("/")[0]
        self.port = int(self.address.rsplit(":", 1)[1])
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()

    def ask(self, path, body=None, kind="application/json"):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": kind, **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        with urllib.request.urlopen(urllib.request.Request(f"http://{self.address}{path}", data, headers), timeout=60) as answer:
            return json.load(answer)

    def upload(self, text):
        line = '--edge\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
        body = line.format("purpose", "", "fine-tune") + line.format("file", '; filename="a.jsonl"', text) + "--edge--\r\n"
        return self.ask("/v1/files", body.encode(), "multipart/form-data; boundary=edge")["id"]

    def submit(self, file, epochs, **recipe):
        method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": 2}}}
        order = {"model": "tiny-model", "training_file": file, "seed": 1, "method": method, "model_garden": {"recipe": {"threads": 1, "max_pixels": 3136, **recipe}}}
        return self.ask("/v1/fine_tuning/jobs", order)["id"]

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            found = dict(line.split(":", 1) for line in file)
        return {name: int(found[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")}

    def seconds(self):
        """Processor time so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def end(self):
        self.process.terminate()
        self.process.wait()
