"""The clients of serve_hostile.py, each a process of its own: ordinary ones that measure how long they wait, and hostile ones.

    python3 bench/hostile_clients.py ROLE < what-it-is-told.json > what-it-found.json

They send to 127.0.0.1 only, from addresses of 127.0.0.0/8, and end after the seconds that they are told, or at SIGTERM. What they do is written in serve_hostile.py.
"""
import asyncio
import collections
import concurrent.futures
import json
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time

MIB = 1 << 20
# Ours, and one of a client that means harm.
KEY, HOSTILE_KEY = "key-of-an-ordinary-client", "key-of-a-hostile-client"
# How long an ordinary client waits; one that gets no answer counts as having waited this long.
PATIENCE = 30
# Ordinary requests of each kind in a second.
ORDINARY_RATE = 10
# What the server takes at most, from its sources: bytes of a request, pairs, letters of their names and values, problems of rows in a job's folder and in its record, letters of one.
LARGEST_REQUEST, PAIRS, NAME, VALUE, PROBLEMS, LISTED_PROBLEMS, PROBLEM = 64 << 10, 16, 64, 512, 100, 5, 300
# The longest letter in UTF-8.
WIDE = "\U0001f33b"
# Room that is left in the quota.
ROOM = 8 * MIB
# The server that does nothing.
NOTHING = "nothing"


# Ordinary clients.


def exchange(port, text):
    """Milliseconds from the connection to the last byte of an answer, and its status."""
    began = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as stream:
            stream.sendall(text)
            head = b""
            while True:
                piece = stream.recv(1 << 18)
                if not piece or time.perf_counter() > began + PATIENCE:
                    break
                head = head or piece[:64]
        status = int(head.split(b" ", 2)[1]) if head else 0
    except OSError:
        status = 0
    return 1000 * (time.perf_counter() - began), status


def head_of(method, path, port, key=KEY, more="", length=None):
    body = "" if length is None else f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n{body}{more}\r\n".encode()


def ordinary(told):
    """Sends each kind of ordinary request at a steady rate, and prints how long each took, until it is told to end."""
    port, draw = told["port"], random.Random(told["seed"])
    wrong = json.dumps({"model": "tiny-model"}).encode()
    kinds = {
        "one job": (200, lambda: head_of("GET", "/v1/fine_tuning/jobs/" + draw.choice(told["jobs"]), port)),
        "20 jobs": (200, lambda: head_of("GET", "/v1/fine_tuning/jobs?limit=20", port)),
        "health": (200, lambda: head_of("GET", "/health", port)),
        "wrong job": (400, lambda: head_of("POST", "/v1/fine_tuning/jobs", port, length=len(wrong)) + wrong),
    }
    times, failed = collections.defaultdict(list), collections.Counter()

    def one(kind):
        if kind == NOTHING:
            times[kind].append(exchange(told["nothing"], b"GET / HTTP/1.1\r\n\r\n")[0])
            return
        expected, text = kinds[kind]
        took, status = exchange(port, text())
        if status != expected:
            failed[f"{kind}: {status or 'no answer'}"] += 1
            took = max(took, 1000 * PATIENCE)
        times[kind].append(took)

    end = time.monotonic() + told["seconds"]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        names, began, count = [*kinds, NOTHING], time.monotonic(), 0
        while not stop.is_set() and time.monotonic() < end:
            for name in draw.sample(names, len(names)):
                # Not on the beat: hostile bursts have one, too, and a kind of request would meet them always or never.
                due = began + (count + draw.random()) / (ORDINARY_RATE * len(names))
                stop.wait(max(0.0, due - time.monotonic()))
                count += 1
                pool.submit(one, name)
    return {"times": times, "failed": failed}


def nothing(told):
    """A server that does nothing."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(listener.getsockname()[1], flush=True)
    listener.settimeout(1)
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            stream, _ = listener.accept()
        except TimeoutError:
            continue
        with stream:
            stream.settimeout(5)
            try:
                stream.recv(4096)
                stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            except OSError:
                pass


# Hostile clients.


async def send(port, address, text, body=b"", limit=1 << 30, patience=60.0):
    """The status of an answer, which is read to its end; or how the connection ended."""
    writer = None
    try:
        async with asyncio.timeout(patience) if hasattr(asyncio, "timeout") else Timeout(patience):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0), limit=1 << 18)
            head = b""
            try:
                writer.write(text)
                for at in range(0, len(body), 1 << 18):
                    writer.write(body[at:at + (1 << 18)])
                    await writer.drain()
            except ConnectionError:
                pass
            got = 0
            while got < limit:
                piece = await reader.read(1 << 18)
                if not piece:
                    break
                got += len(piece)
                head = head or piece[:64]
            return int(head.split(b" ", 2)[1]) if head else "closed"
    except (asyncio.TimeoutError, TimeoutError):
        return "too slow"
    except (OSError, ValueError, IndexError):
        return "closed"
    finally:
        if writer:
            writer.transport.abort()


class Timeout:
    """`asyncio.timeout` for Python before 3.11."""

    def __init__(self, seconds):
        self.seconds = seconds

    async def __aenter__(self):
        task = asyncio.current_task()
        self.call = asyncio.get_running_loop().call_later(self.seconds, task.cancel)

    async def __aexit__(self, kind, error, trace):
        self.call.cancel()
        if kind is asyncio.CancelledError:
            raise asyncio.TimeoutError
        return False


def attacks(told):
    """Hostile requests by name: how many a second, how many at once at such a moment, and what one of them is: head, body."""
    port, draw = told["port"], random.Random(told["seed"])
    get = lambda path, key=HOSTILE_KEY, more="": (head_of("GET", path, port, key, more), b"")
    post = lambda path, body, length=None: (head_of("POST", path, port, HOSTILE_KEY, length=len(body) if length is None else length), body)
    largest = json.dumps({"model": "tiny-model", "training_file": "x" * (LARGEST_REQUEST - 60)}).encode()
    beyond = b'{"model": "' + b"x" * (2 * MIB) + b'"}'
    deep = b"[" * (LARGEST_REQUEST - 1)
    deeper = b'{"model_garden": {"recipe": ' + b'{"a":' * 12000 + b"1" + b"}" * 12000 + b"}}"
    upload = b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--edge\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + b"x" * (ROOM + 2 * MIB) + b"\r\n--edge--\r\n"
    form = lambda path, body: (head_of("POST", path, port, HOSTILE_KEY, f"Content-Type: multipart/form-data; boundary=edge\r\nContent-Length: {len(body)}\r\n"), body)
    header_only = b"--edge\r\nContent-Disposition: form-data; " + b"x" * MIB
    trace = ("step,rss_mib\n" + "".join(f"{step},{5000 + step % 7}\n" for step in range(300_000))).encode()
    pairs = "&".join(f"metadata[k{pair}]={'v' * 400}" for pair in range(PAIRS))
    job = lambda: draw.choice(told["jobs"])
    all_attacks = {
        "full lists of jobs": (4, 16, lambda: get("/v1/fine_tuning/jobs?limit=100" + draw.choice(["", "&after=" + job()]))),
        "all models": (2, 8, lambda: get("/v1/models")),
        "1000 events": (8, 8, lambda: get(f"/v1/fine_tuning/jobs/{draw.choice(told['events'])}/events?limit=1000")),
        "lists of files": (2, 4, lambda: get("/v1/files?limit=10000")),
        "filters": (10, 5, lambda: get(f"/v1/fine_tuning/jobs?limit=100&{pairs}")),
        "one job": (60, 1, lambda: get(f"/v1/fine_tuning/jobs/{job()}")),
        "unknown paths": (40, 1, lambda: get("/" + "x" * draw.choice([10, 8000, 60000]))),
        "the largest body": (20, 4, lambda: post("/v1/fine_tuning/jobs", largest)),
        "a larger body": (10, 4, lambda: post(draw.choice(["/v1/fine_tuning/jobs", "/api/plan", "/api/check", "/v1/uploads"]), beyond)),
        "deep JSON": (20, 4, lambda: post(draw.choice(["/v1/fine_tuning/jobs", "/api/jobs", "/api/plan"]), draw.choice([deep, deeper]))),
        "a length that is not true": (10, 1, lambda: post("/v1/fine_tuning/jobs", b"{}", 1 << 60)),
        "long headers": (20, 4, lambda: get("/health", more="X-Long: " + "x" * draw.choice([1000, 60000, 200000]) + "\r\n")),
        "many headers": (20, 4, lambda: get("/health", more="".join(f"X-{number}: 1\r\n" for number in range(draw.choice([90, 500, 5000]))))),
        "wrong keys": (100, 20, lambda: get("/v1/fine_tuning/jobs", key="wrong" * draw.choice([1, 1000]))),
        "uploads beyond the quota": (1, 2, lambda: form("/v1/files", upload)),
        "forms without a file": (5, 1, lambda: form("/v1/files", header_only)),
        "traces to judge": (0.5, 1, lambda: post("/api/diagnose", trace)),
        "ranges": (20, 1, lambda: get(f"/v1/files/{told['file']}/content", more="Range: bytes=1000-1001\r\n")),
        "wishes": (40, 1, lambda: post(f"/v1/fine_tuning/jobs/{job()}/{draw.choice(['cancel', 'pause', 'resume'])}", b"{}")),
        "live of a job that is over": (5, 5, lambda: get(f"/api/jobs/{job()}/live")),
        "reports": (0.5, 4, lambda: get(f"/api/jobs/{told['first']}/diagnosis")),
    }
    return {name: attack for name, attack in all_attacks.items() if told["only"] in (None, name)}


async def flood_all(told):
    """Sends hostile requests at their rates until there were enough of them."""
    all_attacks = attacks(told)
    sent, answers = collections.Counter(), collections.Counter()
    tasks, began = set(), time.monotonic()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    most = told["requests"]
    late = 0.0

    async def one(name, make):
        text, body = make()
        # Each client is somebody else.
        address = f"127.0.1.{random.randrange(1, 250)}"
        status = await send(told["port"], address, text, body)
        answers[f"{name}: {status}"] += 1

    async def viewer():
        text = head_of("GET", f"/api/jobs/{told['running']}/live", told["port"], HOSTILE_KEY)
        while not stop.is_set():
            status = await send(told["port"], "127.0.2.1", text, patience=told["seconds"])
            # Those who look until the end are what they should be.
            answers[f"viewers: {200 if status == 'too slow' else status}"] += 1
            await asyncio.sleep(1)

    async def repeat(name, rate, at_once, make):
        nonlocal late
        count = 0
        while not stop.is_set():
            due = began + count / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            late = max(late, time.monotonic() - due)
            for _ in range(at_once):
                if sum(sent.values()) >= most or time.monotonic() > began + told["seconds"]:
                    stop.set()
                    return
                count += 1
                sent[name] += 1
                task = asyncio.create_task(one(name, make))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    viewers = [asyncio.create_task(viewer()) for _ in range(told["viewers"])]
    if not all_attacks:
        await asyncio.sleep(told["seconds"])
    await asyncio.gather(*(repeat(name, *attack) for name, attack in all_attacks.items()))
    seconds = time.monotonic() - began
    await asyncio.wait(tasks, timeout=30) if tasks else None
    for task in [*tasks, *viewers]:
        task.cancel()
    return {"sent": sum(sent.values()), "seconds": seconds, "answers": answers, "late": late, "unanswered": len(tasks)}


def flood(told):
    return asyncio.run(flood_all(told))


def hold(told):
    """Holds connections of all kinds that take something of the server and give nothing, and opens those again that it closes."""
    port = told["port"]
    asks = lambda path: head_of("GET", path, port, HOSTILE_KEY)
    part = json.dumps({"model": "tiny-model"}).encode()
    unread = {
        "unread files": asks(f"/v1/files/{told['file']}/content"),
        "unread traces": asks(f"/api/jobs/{told['first']}/trace"),
        "unread archives": asks(f"/api/models/{told['result']}/archive"),
        "unread jobs": asks("/v1/fine_tuning/jobs?limit=100"),
        "unread viewers": asks(f"/api/jobs/{told['first']}/live"),
        "unread lists of files": asks("/v1/files?limit=10000"),
        "unread models": asks("/v1/models"),
        "unread events": asks(f"/v1/fine_tuning/jobs/{told['events'][0]}/events?limit=1000"),
    }
    # What it says first, how many of it, from which addresses, and its name.
    plans = [(text, told["unread"] // (1 if told["only"] else len(unread)), ["127.0.3.1", "127.0.3.2", "127.0.3.3"], name) for name, text in unread.items()]
    plans.append((b"", told["silent"], ["127.0.4.1", "127.0.4.2", "127.0.4.3", "127.0.4.4"], "silence"))
    # Requests that stop in the middle, as large as they can be.
    posts = lambda path, length, body: head_of("POST", path, port, HOSTILE_KEY, length=length) + body
    form = f"Content-Type: multipart/form-data; boundary=edge\r\nContent-Length: {10 * MIB}\r\n"
    halves = {
        "half a head": b"GET /health HTTP/1.1\r\nHost: 127.0",
        "half a long head": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 60000,
        "half a job": posts("/v1/fine_tuning/jobs", LARGEST_REQUEST, b" " * (LARGEST_REQUEST - 100)),
        "half a wish": posts(f"/v1/fine_tuning/jobs/{told['jobs'][0]}/cancel", MIB, b" " * (MIB - 100)),
        "half a trace": posts("/api/diagnose", 10 * MIB, b"x" * 200_000),
        "half a form": head_of("POST", "/v1/files", port, HOSTILE_KEY, form) + b"--edge\r\nContent-Disposition: form-data; " + b"x" * 250_000,
        "half a file": head_of("POST", "/v1/files", port, HOSTILE_KEY, form) + b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 100_000,
    }
    plans += [(text, told["half"] // (1 if told["only"] else len(halves)), ["127.0.5.1", "127.0.5.2"], name) for name, text in halves.items()]
    plans.append((posts("/v1/fine_tuning/jobs", 60000, part), told["half"] // 5, ["127.0.6.1"], "slow bodies"))
    slow = plans[-1]
    if told["only"]:
        plans = [plan for plan in plans if plan[3] == told["only"]]
    wanted = [plan for plan in plans for _ in range(plan[1])]
    random.Random(told["seed"]).shuffle(wanted)
    poll, held, counts = select.epoll(), {}, collections.Counter()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    end, began, opened, dripped = time.monotonic() + told["seconds"], time.monotonic(), 0, time.monotonic()
    while not stop.is_set() and time.monotonic() < end:
        due = int((time.monotonic() - began) * told["opens"])
        while wanted and opened < due:
            plan = wanted.pop()
            opened += 1
            stream = socket.socket()
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.bind((random.choice(plan[2]), 0))
            stream.settimeout(1)
            try:
                stream.connect(("127.0.0.1", port))
                stream.sendall(plan[0])
            except OSError:
                counts["not taken"] += 1
                stream.close()
                wanted.insert(0, plan)
                continue
            stream.setblocking(False)
            counts["opened"] += 1
            held[stream.fileno()] = (stream, plan)
            poll.register(stream.fileno(), select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR)
        if time.monotonic() > dripped + 1:
            dripped = time.monotonic()
            for stream, plan in held.values():
                if plan is slow:
                    try:
                        stream.send(b" ")
                    except OSError:
                        pass
        for number, _ in poll.poll(0.02):
            stream, plan = held.pop(number)
            poll.unregister(number)
            stream.close()
            counts["closed by the server"] += 1
            wanted.insert(0, plan)
        counts["most at once"] = max(counts["most at once"], len(held))
    for stream, _ in held.values():
        stream.close()
    return {"counts": counts}


ROLES = {"ordinary": (ordinary, -5), "nothing": (nothing, 0), "flood": (flood, None), "hold": (hold, None)}


def role(name):
    """A process of its own that plays a role: what it is told comes as JSON, and so does what it found."""
    work, niceness = ROLES[name]
    told = json.load(sys.stdin)
    if told["processors"]:
        os.sched_setaffinity(0, told["processors"])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        if niceness is None:
            # Real ones have machines of their own: these take what nobody else wants, and whoever wakes up need not wait for them.
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except PermissionError:
        pass
    found = work(told)
    found["processor_seconds"] = time.process_time()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    role(sys.argv[1])
