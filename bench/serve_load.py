"""What a server costs under load: many requests for the list of jobs, and many viewers of one running job.

    python3 bench/serve_load.py --binary target/release/model-garden

Starts its own server with the tiny model of testdata/. Prints processor time per request and per viewer, from /proc, the server's memory, and the messages
that one and the same job sends with nobody and with everybody looking.
"""
import argparse
import asyncio
import collections
import json
import os
import re
import sys
import tempfile
import threading
import time

from serving import ROOT, Server, rows


async def request_often(server, rate, seconds, connections=8):
    """Asks for the list of jobs at a rate, on connections that stay; how many were answered."""
    host, port = server.address.split(":")
    request = f"GET /v1/fine_tuning/jobs?limit=20 HTTP/1.1\r\nHost: {server.address}\r\n\r\n".encode()
    end = time.monotonic() + seconds

    async def one(number):
        reader, writer = await asyncio.open_connection(host, int(port))
        done, begin = 0, time.monotonic()
        while time.monotonic() < end:
            wait = begin + done * connections / rate - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(re.search(rb"content-length: (\d+)", head.lower()).group(1))
            await reader.readexactly(length)
            done += 1
        writer.close()
        return done

    return sum(await asyncio.gather(*(one(number) for number in range(connections))))


async def view(server, job, viewers, until):
    """Opens viewers of a job, which read until it is over; bytes that each got."""
    host, port = server.address.split(":")
    request = f"GET /api/jobs/{job}/live HTTP/1.1\r\nHost: {server.address}\r\nConnection: close\r\n\r\n".encode()

    async def one():
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        got = 0
        while True:
            piece = await reader.read(1 << 16)
            if not piece:
                break
            got += len(piece)
        writer.close()
        return got

    tasks = [asyncio.create_task(one()) for _ in range(viewers)]
    while True:
        await asyncio.sleep(0.5)
        if until():
            break
    return await asyncio.gather(*tasks)


def messages(server, job):
    """What the trainer sent over its channel, as the trace has it: events by kind, and samples with its own counts of tensors. Others come by the clock."""
    counts = collections.Counter()
    with open(os.path.join(server.folder, "jobs", job, "out", "trace.jsonl"), encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if "event" in line:
                counts[line["event"] if isinstance(line["event"], str) else next(iter(line["event"]))] += 1
            counts["samples with tensors"] += "tensors" in line
    return dict(counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "model-garden"))
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.binary, folder, "--rate-limit", "1000000")
        print(f"at the start: {server.memory()['VmRSS']:.1f} MiB")
        file = server.upload("".join(rows(24)))
        is_over = lambda job: server.ask(f"/v1/fine_tuning/jobs/{job}")["status"] in ("succeeded", "failed", "cancelled")
        alone = server.submit(file, options.epochs, save_steps=100)
        begin = server.seconds()
        started = time.monotonic()
        while not is_over(alone):
            time.sleep(0.5)
        took, spent = time.monotonic() - started, server.seconds() - begin
        print(f"a job that nobody looks at: {took:.0f} s, {1000 * spent / took:.1f} ms of processor time a second")
        watched = server.submit(file, options.epochs, save_steps=100)
        begin, started = server.seconds(), time.monotonic()
        got = asyncio.run(view(server, watched, options.viewers, lambda: is_over(watched)))
        took, more = time.monotonic() - started, server.seconds() - begin
        each = 1000 * (more - spent) / options.viewers / took
        print(f"{options.viewers} viewers: {took:.0f} s, {1000 * more / took:.1f} ms a second; {each:.3f} ms a second for each viewer, who got {min(got)} to {max(got)} bytes")
        print(f"memory: {server.memory()}")
        begin = server.seconds()
        count = asyncio.run(request_often(server, options.rate, options.seconds))
        spent = server.seconds() - begin
        print(f"list of jobs: {count / options.seconds:.0f} requests/s answered, {1e6 * spent / count:.0f} µs of processor time each")
        print(f"memory: {server.memory()}")
        both = server.submit(file, options.epochs, save_steps=100)
        answered = []
        asking = threading.Thread(target=lambda: answered.append(asyncio.run(request_often(server, options.rate, options.seconds))))
        asking.start()
        got = asyncio.run(view(server, both, options.viewers, lambda: is_over(both)))
        asking.join()
        print(f"both at once: {answered[0] / options.seconds:.0f} requests/s answered, viewers got {min(got)} to {max(got)} bytes; memory: {server.memory()}")
        told = [messages(server, job) for job in (alone, watched, both)]
        is_same = told[0] == told[1] == told[2]
        print(f"messages of the trainer with 0 viewers {told[0]}, with {options.viewers} {told[1]}, and with requests {told[2]}: {'the same' if is_same else 'DIFFERENT'}")
        server.end()
        return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
