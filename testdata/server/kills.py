"""Kills a server and its jobs at random, on a small disk that is full now and then. Every job ends once, with the result of one that nothing happened to.

    python3 testdata/server/kills.py --binary target/release/model-garden --kills 200 --seeds 31,32,33,34

`make serve-kills` runs it. The data folder is a tmpfs of its own, which only root can mount; elsewhere this is skipped. Each seed draws what is killed (the server, the process
that supervises a job, the one that trains, the supervisor of a command, the command's own program), who is paused and resumed, and when the disk is full: a file takes its last
byte and keeps taking what becomes free for some seconds. Meanwhile files have to be readable and deletable, uploads are refused with 507, and kills go on.

All kinds come equally often: they are drawn like cards from a deck, and one that has no process at the moment waits for one. A command whose own program is killed has failed,
once; every other job succeeds.
"""

import argparse
import base64
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "testdata" / "data" / "recorded" / "pictures"
ADAPTER = "adapter_model.safetensors"
# How long a job, a start or an answer may take on a busy machine.
PATIENCE = 300
OVER = ("succeeded", "failed", "cancelled")
# Passes over the rows: enough for a job to be killed several times before its end.
EPOCHS = 300
# The status of what a full disk does not take.
FULL = 507
# Bytes that a batch of jobs needs: where less is free, the oldest results are deleted. A quick machine would otherwise fill the disk with results for good.
ROOM = 64 << 20
# Files that nobody needs: each full disk is to lose one.
SPARE_FILES = 200
# A program that tells when it begins and ends, however long the disk does not take a line of it.
COMMAND = "tell() { until echo $1 >> count; do sleep 0.2; done; } 2>/dev/null; tell begin; sleep 6; tell end"


# What is killed.
SERVER, SUPERVISOR, TRAINER, COMMAND_SUPERVISOR, PROGRAM = KINDS = ("server", "supervisor", "trainer", "supervisor of a command", "program of a command")
# What else happens to a command, and how a kill is named meanwhile.
FULL_DISK = "a full disk"
ON_FULL_DISK = " (0 bytes free)"


class Missed(Exception):
    """Something is not as it has to be."""


class NoAnswer(Missed):
    """The server closes a connection without a word."""


def rows(count):
    picture = min(PICTURES.glob("*.png"), key=lambda path: (path.stat().st_size, path.name))
    uri = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    for number in range(count):
        question = [{"type": "text", "text": f"Row {number}?"}, {"type": "image_url", "image_url": {"url": uri}}]
        yield json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": f"answer {number % 5}"}]}) + "\n"


def order(file, epochs):
    recipe = {"threads": 1, "max_pixels": 3136, "save_steps": 10, "warmup_steps": 1}
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": epochs, "batch_size": 2}}}
    return {"model": "tiny-model", "training_file": file, "seed": 11, "method": method, "model_garden": {"recipe": recipe}}


class Disk:
    """A small disk of our own."""

    def __init__(self, folder, size):
        self.folder = folder
        folder.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], capture_output=True, text=True)
        self.problem = made.stderr.strip() if made.returncode else None
        self.data = folder / "data"
        self.ballast = folder / "ballast"
        self.stop, self.filler = threading.Event(), None

    def free(self):
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self):
        """Takes all that is free, and goes on with what becomes free."""
        file = os.open(self.ballast, os.O_CREAT | os.O_WRONLY)
        self.top_up(file)
        self.stop.clear()
        self.filler = threading.Thread(target=self.keep_full, args=(file,))
        self.filler.start()

    def top_up(self, file):
        free = self.free()
        while free > 0:
            try:
                os.posix_fallocate(file, os.fstat(file).st_size, free)
            except OSError:
                # Somebody else was faster with some of it.
                free //= 2
            free = min(free, self.free())

    def keep_full(self, file):
        while not self.stop.wait(0.02):
            self.top_up(file)
        os.close(file)

    def clear(self):
        self.stop.set()
        self.filler.join()
        self.filler = None
        self.ballast.unlink()

    def close(self):
        if self.filler:
            self.clear()
        subprocess.run(["umount", "-l", self.folder], check=False)


class Server:
    def __init__(self, binary, disk):
        self.binary, self.disk = binary, disk
        self.process, self.address, self.lines = None, None, collections.deque(maxlen=40)

    def start(self):
        words = [self.binary, "serve", "--port", "0", "--device", "cpu", "--data-dir", self.disk.data, "--models", ROOT / "testdata" / "tiny-model"]
        words += ["--slots", "3", "--allow-commands"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/")
        said = []
        # The queue may have something to say before.
        for line in self.process.stderr:
            said.append(line.strip())
            if "http://" in line:
                break
        else:
            self.process.wait()
            return " ".join(said) or f"exit code {self.process.returncode}"
        self.address = "http://" + said[-1].split("http://")[1].split("/")[0]
        threading.Thread(target=self.listen, args=(self.process.stderr,), daemon=True).start()
        return None

    def listen(self, stream):
        for line in stream:
            self.lines.append(line.rstrip())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, path, body=None, method=None, kind="application/json"):
        """Status and bytes of an answer."""
        if self.process.poll() is not None:
            raise Missed(f"the server has ended by itself, with {self.process.returncode}: {list(self.lines)}")
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": kind}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.read()
        except OSError as error:
            raise NoAnswer(f"{request.get_method()} {path}: {error}") from error

    def expect(self, path, *more, **named):
        status, text = self.ask(path, *more, **named)
        if status != 200:
            raise Missed(f"{path}: {status} {text[:500]!r}")
        return json.loads(text)

    def upload(self, text):
        line = '--edge\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
        body = line.format("purpose", "", "fine-tune") + line.format("file", '; filename="rows.jsonl"', text) + "--edge--\r\n"
        return self.ask("/v1/files", body.encode(), kind="multipart/form-data; boundary=edge")

    def job(self, name):
        return self.expect(f"/v1/fine_tuning/jobs/{name}")

    def end_of(self, name):
        deadline = time.monotonic() + PATIENCE
        while True:
            job = self.job(name)
            if job["status"] in OVER:
                return job
            if time.monotonic() > deadline:
                raise Missed(f"{name} does not end: {json.dumps(job)}; the server says {list(self.lines)}")
            time.sleep(0.2)


class Test:
    def __init__(self, binary, seed, kills, size, folder):
        self.seed, self.kills, self.random = seed, kills, random.Random(seed)
        self.disk = Disk(folder, size)
        self.server = Server(binary, self.disk)
        self.done, self.full_moments = 0, 0
        self.counts, self.refused = collections.Counter(), collections.Counter()
        # Kinds that are still to come in this round, and what was done to each command.
        self.deck, self.commands = [], {}
        # How commands ended.
        self.ends = collections.Counter()
        self.known, self.results, self.spare, self.missed = {}, [], [], []
        # Jobs whose results were compared, and how many of them were deleted since.
        self.checked, self.deleted = [], 0

    def say(self, words):
        print(f"seed {self.seed}: {words}", flush=True)

    def miss(self, words):
        self.missed.append(words)
        self.say(f"MISSED: {words}")

    def pid(self, name):
        """The process that supervises a job."""
        try:
            pid = int((self.disk.data / "jobs" / name / "supervisor" / "pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if is_ours(pid, self.disk.data) else None

    def child(self, name, words):
        """The process under a job's supervisor that has these words in its command line."""
        guard = self.pid(name)
        try:
            children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
        except OSError:
            return None
        return next((int(child) for child in children if words in words_of(child)), None)

    def victims(self, name, command):
        """Who can be killed now: not all of them are there all the time."""
        found = {
            SERVER: self.server.process.pid,
            SUPERVISOR: self.pid(name),
            TRAINER: self.child(name, b"train-worker"),
        }
        # The first one may have been refused on a full disk.
        if command:
            found |= {COMMAND_SUPERVISOR: self.pid(command), PROGRAM: self.child(command, COMMAND.encode())}
        return {kind: pid for kind, pid in found.items() if pid}

    def draw(self, victims):
        """The next kind that has a victim; none if those that are left of this round have to be waited for."""
        if not self.deck:
            self.deck = list(KINDS)
            self.random.shuffle(self.deck)
        kind = next((kind for kind in self.deck if kind in victims), None)
        if kind:
            self.deck.remove(kind)
        return kind

    def restart(self):
        """Starts the server. One that cannot start on a full disk is started once there is space."""
        problem = self.server.start()
        if problem and self.disk.filler:
            self.miss(f"the server does not start with 0 bytes free: {problem}")
            self.disk.clear()
            problem = self.server.start()
        if problem:
            raise Missed(f"the server does not start: {problem}")

    def run(self):
        if self.server.start():
            raise Missed("the server does not start in an empty folder")
        text = "".join(rows(20))
        for name, body in [("rows", text), ("kept", "kept " * 1000)] + [(f"spare {number}", f"spare {number}\n" * 500) for number in range(SPARE_FILES)]:
            status, answer = self.server.upload(body)
            if status != 200:
                raise Missed(f"an upload: {status} {answer!r}")
            self.known[json.loads(answer)["id"]] = body.encode()
        self.file, _, *self.spare = list(self.known)
        whole = self.server.expect("/v1/fine_tuning/jobs", order(self.file, EPOCHS))["id"]
        job = self.server.end_of(whole)
        if job["status"] != "succeeded":
            raise Missed(f"the job that nothing happens to: {json.dumps(job)}")
        self.expected = (self.disk.data / "jobs" / whole / "out" / ADAPTER).read_bytes()
        self.results.append(job["fine_tuned_model"])
        taken = self.disk.free()
        while self.done < self.kills:
            self.batch()
        self.say(f"{self.done} kills {dict(self.counts)}, {self.full_moments} full disks, refused meanwhile {dict(self.refused)}, {len(self.results) + self.deleted} results, {self.deleted} of them deleted for room, {taken - self.disk.free()} bytes written and kept")
        self.say(f"commands: {dict(self.ends)}")

    def make_room(self):
        while self.disk.free() < ROOM and self.checked:
            name, model = self.checked.pop(0)
            self.server.expect(f"/api/jobs/{name}", method="DELETE")
            self.results.remove(model)
            self.deleted += 1

    def batch(self):
        self.make_room()
        jobs = [self.server.expect("/v1/fine_tuning/jobs", order(self.file, EPOCHS))["id"] for _ in range(2)]
        while self.done < self.kills and any(self.server.job(name)["status"] not in OVER for name in jobs):
            time.sleep(self.random.uniform(0.3, 2.5))
            # It is to meet jobs that run: those that it stops wait for half a minute.
            if self.random.random() < 0.2 and any(self.child(name, b"train-worker") for name in jobs):
                self.full_disk(jobs)
            else:
                self.kill(jobs)
        for name in jobs:
            self.check_job(name)
        for name in list(self.commands):
            self.check_command(name)
        self.check_known()

    def command(self):
        """A command that is not over: the newest, or a new one."""
        name = next(reversed(self.commands), None)
        if name and self.server.job(name)["status"] not in OVER:
            return name
        status, text = self.server.ask("/api/jobs", {"command": ["sh", "-c", COMMAND]})
        self.refused["job"] += status == FULL
        if status == 200:
            name = json.loads(text)["id"]
            self.commands[name] = set()
        elif status != FULL:
            self.miss(f"a command is answered with {status} {text[:300]!r}")
        return name

    def kill(self, jobs):
        running = [name for name in jobs if self.child(name, b"train-worker")]
        name, command = self.random.choice(running or jobs), self.command()
        victims = self.victims(name, command)
        kind = self.draw(victims)
        if not kind:
            return
        full = ON_FULL_DISK if self.disk.filler else ""
        if kind == SERVER and self.random.random() < 0.5:
            # Somebody may pause it, too, and think better of it.
            paused = self.server.ask(f"/v1/fine_tuning/jobs/{name}/pause", {})[0]
            time.sleep(self.random.uniform(0, 1))
            resumed = self.server.ask(f"/v1/fine_tuning/jobs/{name}/resume", {})[0]
            self.say(f"paused {paused}, resumed {resumed}")
            if FULL in (paused, resumed):
                self.refused["wish"] += 1
        self.done += 1
        self.counts[kind + full] += 1
        self.say(f"kill {self.done} of {self.kills}: {kind} {victims[kind]}{full}")
        if kind in (COMMAND_SUPERVISOR, PROGRAM):
            self.commands[command].add(kind + full)
        if kind == SERVER:
            self.server.kill()
            self.restart()
        else:
            try:
                os.kill(victims[kind], signal.SIGKILL)
            except ProcessLookupError:
                pass

    def full_disk(self, jobs):
        """The disk is full for some seconds."""
        seconds = self.random.uniform(1, 5)
        self.full_moments += 1
        for done in self.commands.values():
            done.add(FULL_DISK)
        self.disk.fill()
        self.say(f"full disk {self.full_moments}: 0 bytes free for {seconds:.1f} s")
        end = time.monotonic() + seconds
        # Jobs stop within a second or so: those that are to die on a full disk do so at once.
        if self.done < self.kills:
            self.kill(jobs)
        time.sleep(self.random.uniform(0, 0.5))
        try:
            status, _ = self.server.upload("more\n" * 20000)
            self.refused["upload"] += status == FULL
            if status not in (200, FULL):
                self.miss(f"an upload to a full disk is answered with {status}")
        except NoAnswer as problem:
            self.miss(f"an upload to a full disk gets no answer: {problem}")
        if self.random.random() < 0.3:
            # Refused, or a job like any other.
            status, text = self.server.ask("/v1/fine_tuning/jobs", order(self.file, EPOCHS))
            self.refused["job"] += status == FULL
            if status == 200:
                jobs.append(json.loads(text)["id"])
            elif status != FULL:
                self.miss(f"a job on a full disk is answered with {status} {text[:300]!r}")
        file = self.spare.pop() if self.spare else None
        if file:
            status, text = self.server.ask(f"/v1/files/{file}", method="DELETE")
            if status == 200:
                del self.known[file]
            else:
                self.miss(f"a file cannot be deleted with 0 bytes free: {status} {text[:300]!r}")
        kept = self.server.ask(f"/v1/files/{self.file}/content")
        if kept != (200, self.known[self.file]):
            self.miss(f"a file cannot be read with 0 bytes free: {kept[0]}")
        while self.disk.filler and time.monotonic() < end and self.done < self.kills:
            if self.random.random() < 0.5:
                self.kill(jobs)
            time.sleep(self.random.uniform(0.2, 1.5))
        if self.disk.filler:
            self.disk.clear()

    def check_job(self, name):
        job = self.server.end_of(name)
        if job["status"] != "succeeded":
            self.miss(f"{name} is {job['status']}: {json.dumps(job['error'])}")
            return
        if (self.disk.data / "jobs" / name / "out" / ADAPTER).read_bytes() != self.expected:
            self.miss(f"{name} has another result")
        ends = [event for event in self.server.expect(f"/v1/fine_tuning/jobs/{name}/events?limit=1000")["data"] if event["message"].startswith("The job has successfully completed")]
        if len(ends) != 1:
            self.miss(f"{name} has ended {len(ends)} times")
        self.results.append(job["fine_tuned_model"])
        self.checked.append((name, job["fine_tuned_model"]))

    def check_command(self, name):
        """One whose program was killed has failed. The others have come to their end; one whose end nobody saw was started again."""
        done = self.commands.pop(name)
        job = self.server.end_of(name)
        try:
            count = (self.disk.data / "jobs" / name / "out" / "count").read_text()
        except FileNotFoundError:
            count = ""
        has_succeeded = job["status"] == "succeeded" and count.endswith("end\n")
        has_failed = job["status"] == "failed" and job["error"]["code"] == "command_failed" and not count.endswith("end\n")
        # It is started again where nobody saw it die, and where the disk was full then. One that is killed in its last moment has succeeded.
        was_killed = any(kind.startswith(PROGRAM) for kind in done)
        is_allowed = has_succeeded or (was_killed and has_failed)
        # Never two of it at once, and not again where its end was seen.
        is_again = done == {PROGRAM} and count.count("begin") > 1
        if not is_allowed or is_again or "end\nend" in count:
            events = [event["message"] for event in self.server.expect(f"/v1/fine_tuning/jobs/{name}/events?limit=100")["data"]]
            self.miss(f"the command {name}: {count!r} after {sorted(done)}, {job['status']}, {json.dumps(job['error'])}, {events[::-1]}")
        deadline = time.monotonic() + 20
        while left := [pid for pid in ours(self.disk.data / "jobs" / name) if words_of(pid)]:
            if time.monotonic() > deadline:
                self.miss(f"the command {name} is over, and these go on: {[words_of(pid) for pid in left]}")
                break
            time.sleep(0.2)
        self.ends[f"{job['status']} after {' and '.join(sorted(done)) or 'nothing'}"] += 1

    def check_known(self):
        """Whatever was there is there, to the byte."""
        for file, text in self.known.items():
            status, found = self.server.ask(f"/v1/files/{file}/content")
            if (status, found) != (200, text):
                self.miss(f"{file} was there, and is answered with {status}, {len(found)} bytes")
        for model in self.results:
            status, found = self.server.ask(f"/api/models/{model}/files/{ADAPTER}")
            if (status, found) != (200, self.expected):
                self.miss(f"{model} was there, and is answered with {status}, {len(found)} bytes")

    def close(self):
        for pid in ours(self.disk.data):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.server.process:
            self.server.process.wait()
        self.disk.close()


def words_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_ours(pid, data):
    return os.fsencode(data) in words_of(pid)


def ours(data):
    """Processes of a server in this folder: they name it, or their current folder is inside it."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            place = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
        if is_ours(pid, data) or place.startswith(str(data)):
            yield int(pid)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "model-garden", type=Path)
    parser.add_argument("--kills", default=200, type=int, help="of all seeds together")
    parser.add_argument("--seeds", default="31,32,33,34", help="one after the other")
    parser.add_argument("--size", default="160m", help="of the disk")
    parser.add_argument("--work", type=Path, help="where the disk is mounted")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print(f"# What `testdata/server/kills.py --kills {options.kills} --seeds {options.seeds}` printed on {time.strftime('%d %B %Y').lstrip('0')}.", flush=True)
    missed, counts = 0, collections.Counter()
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="serve-kills-", dir=options.work) as work:
        for index, seed in enumerate(seeds):
            share = options.kills // len(seeds) + (index < options.kills % len(seeds))
            test = Test(options.binary.resolve(), seed, share, options.size, Path(work) / str(seed))
            if test.disk.problem:
                print(f"skipped: a disk of its own cannot be mounted here: {test.disk.problem}")
                return 0
            began = time.monotonic()
            try:
                test.run()
            except Missed as problem:
                test.miss(str(problem))
            finally:
                test.close()
            print(f"seed {seed}: {'ok' if not test.missed else 'FAILED'}, {time.monotonic() - began:.0f} s", flush=True)
            missed += len(test.missed)
            counts += test.counts
            shutil.rmtree(test.disk.folder, ignore_errors=True)
    for kind in KINDS:
        on_full_disk = counts[kind + ON_FULL_DISK]
        print(f"{kind}: {counts[kind] + on_full_disk} kills, {on_full_disk} of them with 0 bytes free")
    print(f"{counts.total()} kills: " + ("every job ended once, with the same result, and nothing was lost" if not missed else f"{missed} things are not as they have to be"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
