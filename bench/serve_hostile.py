"""A server with 10,000 jobs under 100,000 requests of hostile sizes: its memory, and what an ordinary client notices of it.

    python3 bench/serve_hostile.py --binary target/release/model-garden

`make serve-hostile` runs it, in about ten minutes. The bars: the server's own memory (VmHWM) stays below 100 MiB, and the p99 of each kind of ordinary request is at most three times
what it is without the others; 1 is the exit code if one is missed.

The data folder is filled while the server is stopped: a third of the jobs have the longest settings, metadata and lists of problems that the server accepts. Then rounds of two parts
follow. In the first, ordinary requests are alone. In the second, hostile clients join them, at a rate that is stated and does not depend on the answers, with as many requests in
flight as that takes: bursts of full lists, largest and larger bodies, deep JSON, long headers, wrong keys, files beyond the quota, large traces to judge, viewers; and connections that
are silent, stop in the middle of a request, send a byte a second, or never read what they asked for.

Real clients have machines of their own. Where there are eight processors or more, the server has two of them, ordinary clients two, and hostile ones the rest. With fewer, they share:
hostile clients then take what nobody else wants, and ordinary ones have a higher priority. A server that does nothing is asked beside the real one, on the same processors: how much
slower that one becomes is the machine's part, and is shown beside the ratio, with what other machines took of this one's processors meanwhile. Everything goes to 127.0.0.1, from
addresses of 127.0.0.0/8, and has an end in count and time.
"""
import argparse
import collections
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

from hostile_clients import HOSTILE_KEY, KEY, LARGEST_REQUEST, LISTED_PROBLEMS, MIB, NAME, NOTHING, PAIRS, PROBLEM, PROBLEMS, ROOM, VALUE, WIDE
from serving import ROOT, Server, rows

CLIENTS = os.path.join(ROOT, "bench", "hostile_clients.py")
# MiB, and times the wait without hostile clients.
MEMORY_BAR, RATIO_BAR = 100.0, 3.0


def shares():
    """Processors of the server, of ordinary and of hostile clients; None where they share."""
    all_of_them = sorted(os.sched_getaffinity(0))
    if len(all_of_them) < 8:
        return {"server": None, "ordinary": None, "hostile": None}
    return {"server": all_of_them[:2], "ordinary": all_of_them[2:4], "hostile": all_of_them[4:]}


def stolen():
    """Seconds that other machines on the same host took of this one's processors."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def letters(number, count):
    """So many wide letters, different for each number."""
    text = str(number)
    return text + WIDE * (count - len(text))


# The data folder.


def fill(binary, folder, jobs, files):
    """Makes a data folder with so many jobs and files; what is in it."""
    server = Server(binary, folder, "--allow-commands", keys=[KEY, HOSTILE_KEY])
    first = server.submit(server.upload("".join(rows(8))), 1)
    deadline = time.monotonic() + 120
    while server.ask(f"/v1/fine_tuning/jobs/{first}")["status"] != "succeeded":
        if time.monotonic() > deadline:
            raise SystemExit("error: the first job does not end")
        time.sleep(0.2)
    server.end()
    out = os.path.join(folder, "jobs", first, "out")
    with open(os.path.join(out, "large.bin"), "wb") as large:
        large.write(os.urandom(MIB) * 64)
    with open(os.path.join(out, "trace.jsonl"), "w", encoding="ascii") as trace:
        trace.write('{"model_garden_trace":1}\n')
        trace.writelines(f'{{"time_s":{second},"rss":{1000000000 + second % 1000},"step":{second}}}\n' for second in range(600_000))
    database = sqlite3.connect(os.path.join(folder, "garden.db"), isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")
    (text,) = database.execute("SELECT record FROM jobs WHERE id = ?", [first]).fetchone()
    template = json.loads(text)
    database.execute("BEGIN")
    now, ids, results = int(time.time()), [], [template["result_model"]]
    for number in range(jobs):
        name = f"ftjob-{number:024}"
        job = json.loads(text)
        job["order"]["id"], job["created_at"], job["finished_at"] = name, now - 1000, now - 900
        job["result_model"], job["result_file"] = None, None
        if number % 3 == 0:
            enlarge(job, number)
        else:
            job["metadata"] = {"number": str(number)}
        if number % 3 == 1 or number % 6 == 0:
            job["result_model"] = f"ft:tiny-model::load:{number:08}"
            job["status"], job["error"] = "succeeded", None
            results.append(job["result_model"])
        sql = "INSERT INTO jobs (id, status, priority, result, record, created_at, finished_at, disk_bytes) VALUES (?, ?, 0, ?, ?, ?, ?, 4096)"
        seq = database.execute(sql, [name, job["status"], job["result_model"], json.dumps(job, ensure_ascii=False), job["created_at"], job["finished_at"]]).lastrowid
        database.executemany("INSERT INTO metadata (job, name, value) VALUES (?, ?, ?)", [(seq, *pair) for pair in job["metadata"].items()])
        if number % 500 == 0:
            message = letters(number, 1024)
            events = [(seq, f"step:{step}", now, "error", message, json.dumps({"step": step})) for step in range(1000)]
            database.executemany("INSERT INTO events (job, name, created_at, level, message, data) VALUES (?, ?, ?, ?, ?, ?)", events)
        if number % 10 == 0:
            os.makedirs(os.path.join(folder, "jobs", name, "out"))
            with open(os.path.join(folder, "jobs", name, "findings.json"), "w", encoding="utf-8") as file:
                json.dump({**job["findings"], "problems": problems(PROBLEMS) if number % 3 == 0 else []}, file, ensure_ascii=False)
        ids.append(name)
    for number in range(files):
        name, bytes_ = f"file-{number:024}", 64 * MIB if number == 0 else 17
        path = os.path.join(folder, "files", f"{name}.jsonl")
        with open(path, "wb") as target:
            target.write(os.urandom(MIB) * 64 if number == 0 else b'{"messages": []}\n')
        sql = "INSERT INTO files (id, bytes, created_at, filename, purpose, extension) VALUES (?, ?, ?, ?, 'fine-tune', 'jsonl')"
        database.execute(sql, [name, bytes_, now, letters(number, 60)])
    database.execute("COMMIT")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    sums = "SELECT (SELECT SUM(bytes) FROM files) + (SELECT SUM(disk_bytes) FROM jobs), (SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size())"
    kept, size = database.execute(sums).fetchone()
    longest = database.execute("SELECT MAX(LENGTH(CAST(record AS BLOB))) FROM jobs").fetchone()[0]
    database.close()
    print(f"{jobs} jobs, the longest record with {longest} bytes, {len(results)} results, {files} files; the database has {size / MIB:.0f} MiB")
    return {"jobs": ids, "events": [f"ftjob-{number:024}" for number in range(0, jobs, 500)], "first": first, "result": template["result_model"], "file": "file-" + "0" * 24, "quota": kept + size + ROOM}


def problems(count):
    place = {"param": "training_file", "place": "training_file.jsonl, line 1", "field": "messages[0].content[0].image_url.url"}
    return [{**place, "row": row, "problem": letters(row, PROBLEM)} for row in range(count)]


def enlarge(job, number):
    """As large as a request can make it, and as what is found in its rows can."""
    job["metadata"] = {letters(pair, NAME): letters(number, VALUE) for pair in range(PAIRS)}
    left = LARGEST_REQUEST - len(json.dumps(job["metadata"], ensure_ascii=False).encode()) - 1024
    if number % 2:
        job["order"]["work"] = {"kind": "command", "command": ["x" * left], "memory_limit": None, "checkpoint_dir": None}
        job["model"], job["base"] = "command:" + "x" * left, ""
    else:
        job["order"]["work"]["recipe"]["system_prompt"] = "s" * left
    # A record has the first problems; all of them are in the job's folder.
    job["findings"]["problems"] = problems(LISTED_PROBLEMS)
    job["status"] = "failed"
    job["error"] = {"code": "invalid_training_file", "message": letters(number, PROBLEM), "param": "training_file"}


class Client:
    def __init__(self, name, told):
        self.process = subprocess.Popen([sys.executable, CLIENTS, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
        self.process.stdin.write(json.dumps(told))
        self.process.stdin.close()

    def end(self):
        self.process.terminate()
        return self.result()

    def result(self):
        text = self.process.stdout.read()
        self.process.wait()
        return json.loads(text)


# What comes of it.


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Watch(threading.Thread):
    """Prints the server's memory over time."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.part, self.began, self.stop = server, "", time.monotonic(), threading.Event()

    def run(self):
        count = 0
        while not self.stop.wait(1):
            try:
                found = self.server.memory()
                connections = len(os.listdir(f"/proc/{self.server.process.pid}/fd"))
            except (OSError, KeyError):
                print(f"  {time.monotonic() - self.began:5.0f} s  the server is gone", flush=True)
                return
            count += 1
            if count % 5 == 0:
                print(f"  {time.monotonic() - self.began:5.0f} s  {self.part:8}  {found['VmRSS']:6.1f} MiB, peak {found['VmHWM']:6.1f} MiB, {connections} descriptors", flush=True)


def measure(options, server, known):
    told = {**known, "port": server.port, "only": options.only}
    void = Client("nothing", {"processors": shares()["server"]})
    told["nothing"] = int(void.process.stdout.readline())
    watch = Watch(server)
    watch.start()
    parts = {"alone": collections.defaultdict(list), "hostile": collections.defaultdict(list)}
    failed, answers, counts, rounds = {"alone": collections.Counter(), "hostile": collections.Counter()}, collections.Counter(), collections.Counter(), []
    sent = 0
    for number in range(options.rounds):
        told["seed"] = options.seed + number
        watch.part = "alone"
        took = stolen()
        client = Client("ordinary", {**told, "processors": shares()["ordinary"], "seconds": options.alone})
        before = client.result()
        watch.part = "hostile"
        share = options.requests // options.rounds
        longest = {**told, "seconds": options.longest, "viewers": options.viewers if options.only in (None, "viewers") else 0, "requests": share, "unread": options.unread, "silent": options.silent, "half": options.half, "opens": options.opens}
        spent = server.seconds()
        client = Client("ordinary", {**longest, "processors": shares()["ordinary"]})
        hostile = {**longest, "processors": shares()["hostile"]}
        holding, flooding = Client("hold", hostile), Client("flood", hostile)
        told_by_flood = flooding.result()
        during, held = client.end(), holding.end()
        sent += told_by_flood["sent"]
        answers.update(told_by_flood["answers"])
        counts.update(held["counts"])
        for part, found in (("alone", before), ("hostile", during)):
            failed[part].update(found["failed"])
            for kind, times in found["times"].items():
                parts[part][kind] += times
        rounds.append({kind: percentile(during["times"][kind], 0.99) / percentile(before["times"][kind], 0.99) for kind in before["times"]})
        print(f"round {number + 1}: {told_by_flood['sent']} hostile requests in {told_by_flood['seconds']:.0f} s ({told_by_flood['sent'] / told_by_flood['seconds']:.0f} a second, {told_by_flood['late']:.1f} s late at most, {told_by_flood['unanswered']} without an end); "
              f"processor time: server {server.seconds() - spent:.0f} s, hostile clients {told_by_flood['processor_seconds'] + held['processor_seconds']:.0f} s, other machines {stolen() - took:.0f} s; " + ", ".join(f"{kind} {ratio:.1f}x" for kind, ratio in rounds[-1].items()), flush=True)
        time.sleep(3)
    watch.stop.set()
    void.process.terminate()
    void.process.wait()
    return parts, failed, answers, counts, rounds, sent


def report(server, parts, failed, answers, counts, rounds, sent):
    missed = []
    print(f"\n{sent} hostile requests; connections that give nothing: {dict(counts)}")
    kinds = collections.defaultdict(dict)
    for name, count in answers.items():
        kind, status = name.rsplit(": ", 1)
        kinds[kind][status] = count
    for kind, found in kinds.items():
        print(f"  {kind}: " + ", ".join(f"{status} {count}" for status, count in sorted(found.items())))
    closed = sum(count for name, count in answers.items() if name.endswith(": closed"))
    refused = sum(count for name, count in answers.items() if not name.rsplit(": ", 1)[1].startswith("2"))
    failures = sum(count for name, count in answers.items() if name.rsplit(": ", 1)[1] in ("500", "502"))
    print(f"refused: {refused} of {sum(answers.values())}, {closed} of them by closing the connection; answered with 500: {failures}; ordinary ones that failed: alone {dict(failed['alone'])}, beside hostile ones {dict(failed['hostile'])}")
    if failures:
        missed.append(f"{failures} requests are answered with 500")
    machine = {part: percentile(times[NOTHING], 0.99) for part, times in parts.items()}
    print(f"\n{'ms':12}{'alone p50':>11}{'p99':>9}{'hostile p50':>13}{'p99':>9}{'ratio':>8}{'rounds':>24}{'without the machine':>22}")
    for kind in parts["alone"]:
        alone, hostile = parts["alone"][kind], parts["hostile"][kind]
        ratio = percentile(hostile, 0.99) / percentile(alone, 0.99)
        own = max(0.0, percentile(hostile, 0.99) - (machine["hostile"] - machine["alone"])) / percentile(alone, 0.99)
        each = " ".join(f"{found[kind]:.1f}" for found in rounds)
        print(f"{kind:12}{percentile(alone, 0.5):11.2f}{percentile(alone, 0.99):9.2f}{percentile(hostile, 0.5):13.2f}{percentile(hostile, 0.99):9.2f}{ratio:8.1f}{each:>24}" + (f"{own:22.1f}" if kind != NOTHING else "") + f"   ({len(alone)}, {len(hostile)} requests)")
        if kind != NOTHING and ratio > RATIO_BAR:
            missed.append(f"the p99 of `{kind}` is {ratio:.1f} times what it is alone")
    peak = server.memory()["VmHWM"]
    print(f"\npeak of the server's memory: {peak:.1f} MiB")
    if peak >= MEMORY_BAR:
        missed.append(f"the server's memory reached {peak:.0f} MiB")
    for words in missed:
        print(f"MISSED: {words}")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "model-garden"))
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=3_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--alone", type=float, default=30, help="seconds without hostile clients in each round")
    parser.add_argument("--longest", type=float, default=300, help="seconds of a round with them at most")
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--unread", type=int, default=1000, help="answers that nobody reads")
    parser.add_argument("--silent", type=int, default=2000, help="connections that say nothing")
    parser.add_argument("--half", type=int, default=350, help="requests that stop in the middle")
    parser.add_argument("--opens", type=int, default=100, help="connections of these two kinds that are opened in a second")
    parser.add_argument("--only", metavar="NAME", help="one kind of hostile request or connection alone, as the report names it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", help="a folder that was filled before, or is to be kept")
    options = parser.parse_args()
    folder = options.data or tempfile.mkdtemp(prefix="serve-hostile-")
    known_at = os.path.join(folder, "..", os.path.basename(folder) + ".json")
    try:
        if options.data and os.path.exists(known_at):
            with open(known_at, encoding="utf-8") as file:
                known = json.load(file)
        else:
            known = fill(options.binary, folder, options.jobs, options.files)
            if options.data:
                with open(known_at, "w", encoding="utf-8") as file:
                    json.dump(known, file)
        server = Server(options.binary, folder, "--allow-commands", "--rate-limit", "1000000", "--quota", f"{known['quota']}B", keys=[KEY, HOSTILE_KEY], processors=shares()["server"])
        try:
            print("processors: " + (", ".join(f"{name} {found}" for name, found in shares().items()) if shares()["server"] else "shared by server and clients"))
            print(f"at the start: {server.memory()['VmRSS']:.1f} MiB")
            lines = "for line in $(seq 20000); do echo $line; sleep 0.1; done"
            known["running"] = server.ask("/api/jobs", {"command": ["sh", "-c", lines]})["id"]
            found = measure(options, server, known)
            missed = report(server, *found)
            server.ask(f"/v1/fine_tuning/jobs/{known['running']}/cancel", {})
            time.sleep(3)
        finally:
            print("the server said: " + " | ".join(line.strip() for line in server.said) if server.said else "the server said nothing")
            server.end()
    finally:
        if not options.data:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
