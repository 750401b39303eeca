"""Fuzzes `model-garden serve`: schemathesis against the OpenAPI description, then requests that no client library would send.

`make serve-fuzz` runs it. It starts a server of its own, with files, uploads, jobs and a model in it, and ends it. It fails if an answer is not the described one, if
anything is answered with a status of 500 or more, or if the server hangs, panics or dies. The server runs commands as jobs, too: its PATH holds only `sleep`, so a
command that was drawn at random cannot be a program.
"""

import argparse
import base64
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Longer than the server waits for a body that does not come.
PATIENCE = 60
# How long a job may take until its end on a busy machine.
JOB_PATIENCE = 300
SLOTS = 2

# What the server may refuse with 400 although its schema allows it, since the reason is not in the request alone.
REFUSED = {
    "createUpload": "sizes beyond --max-file-size, and control characters in names",
    "completeUpload": "parts that are not the upload's, or not all of it",
    "createJob": "settings that contradict each other, plans that do not fit, files for another purpose",
    "plan": "the same",
    "createCommand": "sizes that are no sizes",
    "check": "files that are no rows at all",
    "diagnose": "text that is no trace",
    "listFiles": "`after` that is not in the list",
    "listJobs": "the same",
    # What a job's or an upload's state does not allow is 400: clients retry 409.
    **dict.fromkeys(["cancelUpload", "addUploadPart", "cancelJob", "pauseJob", "resumeJob", "finishJob", "deleteJob", "getJobTrace", "getJobDiagnosis", "getJobPlan", "getJobLog", "getJobReport"], "its state"),
}

# Names for one operation alone, so that the others do not take away what it needs.
OWN = {"deleteModel": ("path.model", "doomed_models"), "deleteFile": ("path.file_id", "doomed_files"), "finishJob": ("path.job_id", "unfinished"),
       "resumeJob": ("path.job_id", "paused"), "getModelFile": ("path.model", "results")}

# What random requests do not reach; `crates/model-garden/tests/it/openapi.rs` has an answer of each.
UNREACHED = {"/v1/uploads/{upload_id}/complete": "needs exactly the parts of one upload", "/openapi.json": "schemathesis reads it, and leaves it out"}

# What it may accept although the schema forbids it.
ACCEPTED = {"listJobs": "in a query all is text: `metadata[k]=null` asks for the text `null`"}

CONFIG = """
continue-on-failure = true
max-stream-events = 2
request-timeout = {patience}

# Names in this file that the description does not have.
[warnings]
display = ["unmatched_filter", "dictionary_mismatch"]
fail-on = ["unmatched_filter", "dictionary_mismatch"]

[cache]
enabled = false

[generation]
max-examples = {examples}

[phases.stateful.generation]
max-examples = {examples}

[dictionaries]
{dictionaries}

[parameters]
"path.file_id" = {{ dictionary = "files", probability = 0.5 }}
"path.upload_id" = {{ dictionary = "uploads", probability = 0.5 }}
"path.job_id" = {{ dictionary = "jobs", probability = 0.5 }}
"path.model" = {{ dictionary = "models", probability = 0.5 }}
"path.name" = {{ dictionary = "names", probability = 0.5 }}
"body.model" = {{ dictionary = "models", probability = 0.7 }}
"body.training_file" = {{ dictionary = "files", probability = 0.7 }}
"body.validation_file" = {{ dictionary = "files", probability = 0.7 }}

# A job that does nothing says nothing for long; what came until then is compared.
[[operations]]
include-operation-id = "followJob"
request-timeout = 3
"""

OPERATION = """
# {why}
[[operations]]
include-operation-id = "{id}"
checks.{check}.expected-statuses = {statuses}
"""

OWN_NAMES = """
[[operations]]
include-operation-id = "{id}"
parameters = {{ "{parameter}" = {{ dictionary = "{dictionary}", probability = 0.5 }} }}
phases.coverage.extra-data-sources.responses = false
phases.fuzzing.extra-data-sources.responses = false
"""


def picture(red, green, blue):
    """A small PNG of one colour."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((red, green, blue)) * 56 for _ in range(56))
    header = struct.pack(">IIBBBBB", 56, 56, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def rows(count):
    """Rows for training, as OpenAI's clients send them."""
    for number in range(count):
        name, colour = [("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 255))][number % 3]
        url = "data:image/png;base64," + base64.b64encode(picture(*colour)).decode()
        content = [{"type": "text", "text": f"Which colour has picture {number}?"}, {"type": "image_url", "image_url": {"url": url}}]
        yield json.dumps({"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": name}]})


class Server:
    """A server in a folder of its own."""

    def __init__(self, binary, work):
        shutil.rmtree(work, ignore_errors=True)
        programs = work / "programs"
        programs.mkdir(parents=True)
        (programs / "sleep").symlink_to(shutil.which("sleep"))
        self.log = work / "server.log"
        words = [str(binary), "serve", "--port", "0", "--data-dir", str(work / "data"), "--models", str(ROOT / "testdata/tiny-model"),
                 "--alias", "gpt-4o-2024-08-06=tiny-model", "--device", "cpu", "--allow-commands", "--slots", str(SLOTS), "--rate-limit", "1000000",
                 "--max-file-size", "64MiB", "--quota", "1GiB"]
        environment = {**os.environ, "PATH": str(programs), "RUST_BACKTRACE": "1"}
        self.process = subprocess.Popen(words, stdout=self.log.open("w"), stderr=subprocess.STDOUT, env=environment)
        self.port = None
        deadline = time.monotonic() + PATIENCE
        while self.port is None:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.log.read_text())
            if found:
                self.port = int(found[1])
            elif self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start:\n{self.log.read_text()}")
            else:
                time.sleep(0.05)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def call(self, method, path, body=None, kind="application/json"):
        """The answer to a request that has to succeed."""
        data = json.dumps(body).encode() if kind == "application/json" and body is not None else body
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def send_file(self, name, data):
        form = (b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b\r\ncontent-disposition: form-data; name="file"; filename="'
                + name.encode() + b'"\r\n\r\n' + data + b"\r\n--b--\r\n")
        return self.call("POST", "/v1/files", form, "multipart/form-data; boundary=b")["id"]

    def fill(self):
        """Makes one of each thing; their names, by what they are."""
        good = self.send_file("rows.jsonl", "\n".join(rows(24)).encode() + b"\n")
        bad = self.send_file("bad.jsonl", b'{"messages": [{"role": "user", "content": "no answer"}]}\n')
        order = {"model": "gpt-4o-2024-08-06", "training_file": good, "hyperparameters": {"n_epochs": 1}}
        trained = [self.call("POST", "/v1/fine_tuning/jobs", {**order, "validation_file": good, "suffix": "fuzz", "metadata": {"team": "a"}})["id"] for _ in range(2)]
        jobs = [self.wait(id, "succeeded") for id in trained]
        models = [job["fine_tuned_model"] for job in jobs]
        failed = self.call("POST", "/v1/fine_tuning/jobs", {**order, "training_file": bad})["id"]
        # They take all slots, so that the others wait.
        running = [self.call("POST", "/api/jobs", {"command": ["sleep", "3000"], "priority": 100})["id"] for _ in range(SLOTS)]
        waiting = [self.call("POST", "/v1/fine_tuning/jobs", order)["id"] for _ in range(6)]
        for id in waiting:
            self.wait(id, "queued")
            self.call("POST", f"/v1/fine_tuning/jobs/{id}/pause")
        uploads = [self.call("POST", "/v1/uploads", {"filename": "a.jsonl", "purpose": "fine-tune", "bytes": 4, "mime_type": "text/plain"})["id"] for _ in range(4)]
        names = [file["name"] for file in self.call("GET", f"/api/models/{models[0]}/files")["data"]]
        return {"files": [good, bad, *jobs[0]["result_files"]], "doomed_files": [self.send_file("doomed.jsonl", b"{}") for _ in range(4)], "uploads": uploads,
                "jobs": [trained[0], failed, *running, *waiting[:2]], "paused": waiting[2:4], "unfinished": waiting[4:],
                "models": ["tiny-model", models[0]], "results": models[:1], "doomed_models": ["tiny-model", models[1]], "names": names}

    def wait(self, id, status):
        """The job, once it has this status."""
        deadline = time.monotonic() + JOB_PATIENCE
        while (job := self.call("GET", f"/v1/fine_tuning/jobs/{id}"))["status"] != status:
            if time.monotonic() > deadline or job["finished_at"]:
                sys.exit(f"the job is not {status}: {job}")
            time.sleep(0.1)
        return job

    def unfinished(self):
        """All jobs that are not over."""
        page, found = {"has_more": True, "last_id": ""}, []
        while page["has_more"]:
            page = self.call("GET", f"/v1/fine_tuning/jobs?limit=100&after={page['last_id']}")
            found += [job["id"] for job in page["data"] if job["finished_at"] is None]
        return found

    def end(self):
        """Ends the server and all of its jobs; what is wrong with how it ended."""
        problems = []
        if self.process.poll() is not None:
            problems.append(f"the server died with {self.process.returncode}")
        else:
            # Those that wait first: a job whose slot becomes free would start the next.
            for id in self.unfinished():
                try:
                    self.call("POST", f"/v1/fine_tuning/jobs/{id}/cancel")
                except urllib.error.HTTPError:
                    # It has ended by itself.
                    pass
            deadline = time.monotonic() + PATIENCE
            while self.unfinished():
                if time.monotonic() > deadline:
                    problems.append("jobs that were cancelled do not end")
                    break
                time.sleep(0.2)
            self.process.send_signal(signal.SIGTERM)
            try:
                code = self.process.wait(PATIENCE)
                if code != 0:
                    problems.append(f"the server ended with {code}")
            except subprocess.TimeoutExpired:
                problems.append("the server does not end")
                self.process.kill()
        if "panicked" in self.log.read_text():
            problems.append(f"the server panicked: see {self.log}")
        return problems


def head(method, target, *headers):
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers, "", ""]).encode("latin-1")


def with_body(method, target, body, kind="application/json"):
    return head(method, target, f"Content-Type: {kind}", f"Content-Length: {len(body)}") + body


def form(*fields, end=b"--b--\r\n"):
    return b"".join(b'--b\r\ncontent-disposition: form-data; name="' + name + b'"\r\n\r\n' + value + b"\r\n" for name, value in fields) + end


def raw_requests(known, draw, count):
    """Requests as bytes, with what they are: (name, bytes)."""
    job, upload = known["jobs"][0], known["uploads"][0]
    posts = ["/v1/files", "/v1/uploads", f"/v1/uploads/{upload}/parts", f"/v1/uploads/{upload}/complete", f"/v1/uploads/{upload}/cancel", "/v1/fine_tuning/jobs",
             f"/v1/fine_tuning/jobs/{job}/cancel", f"/v1/fine_tuning/jobs/{job}/pause", f"/v1/fine_tuning/jobs/{job}/resume", f"/api/jobs/{job}/finish", "/api/jobs",
             "/api/diagnose", "/api/check", "/api/plan"]
    order = json.dumps({"model": "tiny-model", "training_file": known["files"][0]}).encode()
    bodies = {
        "nothing": b"", "a NUL": b"\0", "no UTF-8": b"\xff\xfe\xfd", "half a character": b'{"model": "\xc3"}', "a lone surrogate": b'{"model": "\\ud800"}',
        "NUL in texts": b'{"model": "a\\u0000b", "training_file": "\\u0000", "command": ["\\u0000"], "part_ids": ["\\u0000"]}',
        "deep lists": b"[" * 100_000, "deep objects": b'{"model":' * 50_000, "deep and closed": b'{"metadata":' + b"[" * 120 + b"]" * 120 + b"}",
        "a huge number": b'{"seed": ' + b"9" * 5000 + b"}", "a huge exponent": b'{"seed": 1e999999999, "bytes": 1e308}', "numbers beyond i64": b'{"bytes": 9223372036854775808, "priority": -9223372036854775809}',
        "not a number": b'{"seed": NaN}', "a long key": b'{"' + b"k" * 900_000 + b'": 1}', "a long text": b'{"model": "' + b"m" * 900_000 + b'"}', "the same key twice": b'{"model": "a", "model": {}}',
        "many keys": b"{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b"}", "too large": b'{"model": "' + b"m" * (2 << 20) + b'"}',
        "a list": b"[]", "a number": b"0", "null": b"null", "two values": b"{} {}", "a byte order mark": b"\xef\xbb\xbf{}", "spaces": b" \r\n\t",
        "odd settings": b'{"model_garden": {"recipe": {"epochs": 1e308, "batch-size": -1, "threads": 1e18, "prefetch": "99999999TB", "max-pixels": 18446744073709551615, "lora-r": 4294967295, "": null}}, ' + order[1:],
        "a huge rank": b'{"model_garden": {"recipe": {"lora-r": 4294967296}}, ' + order[1:], "many threads": b'{"model_garden": {"recipe": {"loader-threads": 1000000, "threads": 1000000}}, ' + order[1:],
        "a form": form((b"purpose", b"fine-tune"), (b"file", b"x"), (b"data", b"x")), "a form that breaks off": form((b"purpose", b"fine-tune"), end=b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nabc'),
        "a form in its header": b'--b\r\ncontent-dispo', "a form of strange names": form((b"\xff\0", b"x"), (b'purpose"; filename="../../x', b"\0")), "a form with the field twice": form((b"file", b"1"), (b"file", b"2"), (b"data", b"1"), (b"data", b"2")),
        "a form with a long text": form((b"purpose", b"x" * 100_000)), "many fields": form(*[(b"purpose", b"x")] * 20_000), "a form with a long header": b'--b\r\nx: ' + b"y" * 200_000 + b"\r\n\r\n",
    }
    kinds = ["application/json", "text/plain", "multipart/form-data; boundary=b", "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\xe4", "application/x-www-form-urlencoded", "", "\xff\xfe"]
    for target in posts:
        for name, body in bodies.items():
            for kind in kinds[:3]:
                yield f"{name} to {target} as {kind}", with_body("POST", target, body, kind)
        for kind in kinds[3:]:
            yield f"{target} as {kind!r}", with_body("POST", target, b"--b--", kind)
        chunked = head("POST", target, "Transfer-Encoding: chunked", "Content-Type: application/json")
        for name, body in {"chunks": b"2\r\n{}\r\n0\r\n\r\n", "no size": b"zz\r\n{}\r\n", "a huge chunk": b"ffffffffffffffff\r\n{}", "a size that overflows": b"1" * 40 + b"\r\n{}", "trailers": b"0\r\nx: y\r\n\r\n",
                           "an extension": b"2;" + b"x" * 20_000 + b"\r\n{}\r\n0\r\n\r\n", "a negative size": b"-2\r\n{}\r\n"}.items():
            yield f"{name} to {target}", chunked + body
        yield f"length and chunks to {target}", head("POST", target, "Transfer-Encoding: chunked", "Content-Length: 2") + b"{}"
        for length in ["-1", "1, 2", "99999999999999999999", "0x2", "+2"]:
            yield f"the length {length} to {target}", head("POST", target, f"Content-Length: {length}") + b"{}"
        yield f"an expectation to {target}", head("POST", target, "Expect: 100-continue", "Content-Length: 2") + b"{}"
    parts = ["%00", "%ff", "%", "%zz", "..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "a" * 5000, "%F0%9F%8C%B1", "'%20OR%201=1--", "ft:tiny-model::x:y:ckpt-step-1", "~", ";", "|", "%0d%0ax:%20y"]
    for part in parts:
        for target in ["/v1/files/{}", "/v1/files/{}/content", "/v1/fine_tuning/jobs/{}", "/v1/fine_tuning/jobs/{}/events", "/v1/models/{}", "/api/models/{}/files", "/api/models/tiny-model/files/{}",
                       "/api/jobs/{}/trace", "/api/jobs/{}/log", "/api/jobs/{}/live", "/api/jobs/{}/report.html", "/{}", "/v1/files?after={}", "/v1/files?limit={}", "/v1/files?{}", "/v1/fine_tuning/jobs?metadata[{}]=1",
                       f"/v1/fine_tuning/jobs/{job}/events?after={{}}", f"/api/jobs/{job}/live?from={{}}"]:
            yield f"GET {target} of {part[:30]}", head("GET", target.format(part))
        yield f"DELETE of {part[:30]}", head("DELETE", f"/v1/models/{part}")
        for parameter in ["unit", "select", "column", "memory_limit"]:
            yield f"{parameter} of {part[:30]}", with_body("POST", f"/api/diagnose?{parameter}={part}", b"rss\n1\n2\n3\n")
    yield "many filters", head("GET", "/v1/fine_tuning/jobs?" + "&".join(f"metadata[{number}]=x" for number in range(3000)))
    yield "a long path", head("GET", "/" + "a" * 100_000)
    yield "a long query", head("GET", "/v1/files?" + "a" * 60_000)
    yield "a long header", head("GET", "/health", "x: " + "y" * 1_000_000)
    yield "many headers", head("GET", "/health", *[f"x{number}: y" for number in range(500)])
    yield "a header with NUL", head("GET", "/health", "x: \0")
    yield "a header without a colon", head("GET", "/health", "x")
    yield "two hosts", head("GET", "/health", "Host: localhost")
    yield "no host", b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
    yield "HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n"
    yield "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "HTTP/9", b"GET /health HTTP/9.9\r\n\r\n"
    yield "TLS", bytes.fromhex("16030100a5010000a10303") + bytes(160)
    yield "another protocol", b"\0" * 4096
    yield "an empty line", b"\r\n\r\n"
    yield "CONNECT", b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    yield "OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    yield "a method of its own", head("BREW", "/v1/files")
    yield "an upgrade", head("GET", "/health", "Upgrade: websocket", "Connection: Upgrade")
    yield "a range", head("GET", f"/v1/files/{known['files'][0]}/content", "Range: bytes=-99999999999999999999")
    yield "a place that is no text", head("GET", f"/api/jobs/{job}/live", "Last-Event-ID: \xff")
    for number in range(count):
        target = draw.choice(posts)
        body = draw.randbytes(draw.choice([1, 10, 100, 1000, 100_000])) if draw.random() < 0.5 else mutated(draw.choice([order, bodies["a form"]]), draw)
        yield f"random bytes {number} to {target}", with_body("POST", target, body, draw.choice(kinds[:3]))
        yield f"a random request {number}", mutated(with_body("POST", target, body[:200], "application/json"), draw)


def mutated(body, draw):
    """The same with a few bytes changed, left out or doubled."""
    body = bytearray(body)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(body) + 1)
        change = draw.random()
        if change < 0.4:
            body[at:at + 1] = draw.randbytes(1)
        elif change < 0.7:
            del body[at:at + draw.randint(1, 20)]
        else:
            body[at:at] = body[at:at + draw.randint(1, 200)]
    return bytes(body)


def ask(port, name, request):
    """Sends bytes as they are; what is wrong with the answer."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            try:
                connection.sendall(request)
                # Nothing more comes: a server that waits for the rest of a body sees its end.
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                # The server has answered before it has read everything, and closed.
                pass
            while piece := connection.recv(1 << 16):
                answer += piece
                if b"text/event-stream" in answer[:500]:
                    return None
    except ConnectionResetError:
        pass
    except TimeoutError:
        return f"{name}: no answer within {PATIENCE} s"
    # What is no HTTP may be answered with the end of the connection, and what looks like two requests with two answers.
    while answer:
        found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
        if not found:
            return f"{name}: no HTTP: {answer[:200]!r}"
        status, headers, rest = int(found[1]), *answer.partition(b"\r\n\r\n")[::2]
        if status >= 500:
            return f"{name}: {answer[:600]!r}"
        length = re.search(rb"content-length: (\d+)", headers)
        body, answer = (rest[:int(length[1])], rest[int(length[1]):]) if length else (b"", rest)
        # Requests that are no HTTP do not get as far as to those who give reasons.
        if status >= 400 and body and not is_error(body):
            return f"{name}: not the shape of an error: {headers[:200]!r} {body[:300]!r}"
    return None


def is_error(body):
    try:
        return isinstance(json.loads(body)["error"]["message"], str)
    except (ValueError, LookupError, TypeError):
        return False


def slow(port, name, first):
    """A request that never ends has to be given up by the server."""
    began = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.sendall(first)
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
    except TimeoutError:
        return f"{name}: the server still waits after {time.monotonic() - began:.0f} s"
    except ConnectionResetError:
        return None
    return None if not answer or b" 408 " in answer[:20] else f"{name}: {answer[:300]!r}"


def raw(server, known, seed, count):
    """All raw requests; what is wrong."""
    draw = random.Random(seed)
    requests = list(raw_requests(known, draw, count))
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(slow, server.port, "half a header", b"POST /v1/files HTTP/1.1\r\nHost: 127"),
                 pool.submit(slow, server.port, "half a body", head("POST", "/v1/uploads", "Content-Length: 10") + b"{"),
                 pool.submit(slow, server.port, "half a form", head("POST", "/v1/files", "Content-Type: multipart/form-data; boundary=b", "Content-Length: 99999") + b"--b\r\n")]
        problems = list(pool.map(lambda one: ask(server.port, *one), requests))
        problems += [wait.result() for wait in waits]
    print(f"{len(requests) + len(waits)} raw requests")
    return [problem for problem in problems if problem]


def never_answered(server, report):
    """Operations of which schemathesis saw only refusals: of those it has tested nothing but the refusals."""
    answered = {}
    patterns = {(method.upper(), path): re.compile(re.sub(r"\{\w+\}", "[^/]+", re.escape(path).replace("\\{", "{").replace("\\}", "}")) + "$")
                for path, methods in server.call("GET", "/openapi.json")["paths"].items() for method in methods if method != "parameters"}
    for entry in json.loads(report.read_text())["log"]["entries"]:
        path = urllib.parse.urlsplit(entry["request"]["url"]).path
        for operation, pattern in patterns.items():
            if operation[0] == entry["request"]["method"] and pattern.match(path):
                answered.setdefault(operation, []).append(entry["response"]["status"])
    for operation in patterns:
        statuses = answered.get(operation, [])
        print(f"{sum(status < 300 for status in statuses):5} of {len(statuses):5} fine  {' '.join(operation)}")
    return [f"{' '.join(operation)} was never answered with what was asked for" for operation in patterns
            if operation[1] not in UNREACHED and not any(status < 300 for status in answered.get(operation, []))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="model-garden")
    parser.add_argument("--work", type=Path, required=True, help="folder for the server and the reports; emptied first")
    parser.add_argument("--schemathesis", default=str(Path(sys.executable).parent / "schemathesis"), help="its program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=30, help="drawn requests for each operation")
    parser.add_argument("--raw", type=int, default=500, help="drawn raw requests, twice")
    arguments = parser.parse_args()
    server = Server(arguments.binary.resolve(), arguments.work.resolve())
    problems = []
    try:
        known = server.fill()
        dictionaries = "\n".join(f"{name} = {{ values = {json.dumps(values)} }}" for name, values in known.items())
        config = arguments.work / "schemathesis.toml"
        # 422: an `Idempotency-Key` that came with another body before.
        statuses = ["2xx", "400", "401", "403", "404", "422", "429"]
        exceptions = [("positive_data_acceptance", REFUSED), ("negative_data_rejection", ACCEPTED)]
        config.write_text(CONFIG.format(patience=PATIENCE, examples=arguments.examples, dictionaries=dictionaries)
                          + "".join(OPERATION.format(id=id, why=why, check=check, statuses=statuses) for check, all in exceptions for id, why in all.items())
                          + "".join(OWN_NAMES.format(id=id, parameter=parameter, dictionary=dictionary) for id, (parameter, dictionary) in OWN.items()))
        words = [arguments.schemathesis, "--config-file", str(config.resolve()), "run", f"{server.url}/openapi.json", "--checks", "all", "--seed", str(arguments.seed),
                 "--report", "har", "--report-har-path", str(arguments.work.resolve() / "requests.har")]
        if subprocess.run(words, cwd=arguments.work).returncode != 0:
            problems.append(f"schemathesis found something; again with: --seed {arguments.seed} --examples {arguments.examples}")
        problems += never_answered(server, arguments.work / "requests.har")
        problems += raw(server, server.fill(), arguments.seed, arguments.raw)
    finally:
        problems += server.end()
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems" if problems else "nothing found")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
