"""The channel: what is said arrives, a stop comes back, and nothing that the other end does can hurt the program."""
import os
import socket
import subprocess
import unittest
import warnings

import support
from support import FolderCase, Listener, run_program, strict_python, wait_until

from model_garden import events, speech


def fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12: a fork beside a thread, which is the point here
        return os.fork()


class Channel(FolderCase):
    def setUp(self):
        super().setUp()
        self.listener = Listener(self.path("events"))
        self.addCleanup(self.listener.close)
        self.channel = events.Channel(self.listener.path)
        self.addCleanup(self.channel.close)

    def test_messages_arrive_in_order_and_a_stop_comes_back(self):
        for step in range(1, 1001):
            self.channel.tell(step=step)
        # The last message may find the socket full: it must get through without another one behind it.
        self.channel.tell(event="epoch_end")
        self.listener.wait_for(lambda message: message.get("event") == "epoch_end")
        self.assertEqual([message.get("step") for message in self.listener.messages[:-1]], list(range(1, 1001)))
        self.assertFalse(self.channel.should_stop)
        self.listener.ask_to_stop()
        self.assertTrue(wait_until(lambda: self.channel.should_stop))

    def test_what_is_no_json_is_left_out(self):
        with self.assertLogs("model_garden") as logs:
            speech._warned.discard("message")
            self.assertTrue(self.channel.tell(step=object()))
            self.assertTrue(self.channel.tell(step=float("nan")))
        self.assertEqual(len(logs.output), 1, "one warning only")
        self.channel.tell(step=2)
        self.listener.wait_for(lambda message: message.get("step") == 2)

    def test_a_forked_process_does_not_speak_and_does_not_hang_up(self):
        child = fork()
        if child == 0:
            try:
                told = self.channel.tell(step=99)
                self.channel.close()
                os._exit(1 if told or self.channel.is_open else 0)
            except BaseException:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        self.assertEqual(os.WEXITSTATUS(status), 0)
        self.assertTrue(self.channel.tell(step=1))
        self.listener.wait_for(lambda message: message.get("step") == 1)
        self.assertNotIn({"step": 99}, self.listener.messages)

    def test_a_forked_process_does_not_keep_the_connection_open(self):
        reader, writer = os.pipe()
        child = fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        self.channel.close()
        self.assertTrue(wait_until(lambda: self.listener.connections), "nobody was let in")
        connection = self.listener.connections[0]
        hung_up = wait_until(lambda: self.is_hung_up(connection))
        os.close(writer)
        os.waitpid(child, 0)
        self.assertTrue(hung_up, "the watcher must see at once that the program has gone")

    def is_hung_up(self, connection):
        try:
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


class Trouble(FolderCase):
    def test_a_watcher_that_does_not_read_never_blocks(self):
        server = socket.socket(socket.AF_UNIX)
        self.addCleanup(server.close)
        server.bind(self.path("events"))
        server.listen(1)
        script = f"""
import time, model_garden.events as events
channel = events.Channel({self.path("events")!r})
slowest = 0
for step in range(200_000):
    begin = time.perf_counter()
    channel.tell(step=step)
    slowest = max(slowest, time.perf_counter() - begin)
begin = time.perf_counter()
channel.close()
print(channel.is_open, slowest < 0.5, time.perf_counter() - begin < 2)
"""
        done = run_program(strict_python("-c", script))
        self.assertEqual(done.stdout, "False True True\n", done.stderr)
        self.assertEqual(done.stderr.count("model-garden:"), 1, done.stderr)
        self.assertIn("it stopped reading", done.stderr)

    def test_a_watcher_that_dies_is_one_warning(self):
        listener = Listener(self.path("events"))
        script = f"""
import sys, model_garden.events as events
channel = events.connect({listener.path!r})
print(channel.tell(step=1), flush=True)
sys.stdin.readline()
print([channel.tell(step=step) for step in range(100)][-1], channel.should_stop)
"""
        child = subprocess.Popen(
            strict_python("-c", script),
            env=support.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        listener.wait_for(lambda message: message.get("step") == 1)
        listener.close()
        out, err = child.communicate("go on\n", timeout=support.TIMEOUT_S)
        self.assertEqual((child.returncode, out), (0, "True\nFalse False\n"), err)
        self.assertEqual(err.count("model-garden:"), 1, err)

    def test_nobody_there_is_silence(self):
        script = "import model_garden.events as events; print(events.connect('/nowhere/events').tell(step=1))"
        done = run_program(strict_python("-c", script))
        self.assertEqual((done.returncode, done.stdout), (0, "False\n"))
        self.assertIn("nothing listens at `/nowhere/events`", done.stderr)


if __name__ == "__main__":
    unittest.main()
