"""What the tests share: where things are, real child processes, and a watcher that only listens."""
import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TESTS = os.path.dirname(os.path.abspath(__file__))
PACKAGE_FOLDER = os.path.dirname(TESTS)
PROGRAMS = os.path.join(TESTS, "programs")
REPOSITORY = os.path.dirname(PACKAGE_FOLDER)
TIMEOUT_S = 60
# Of everything that tests draw; `make soak` sets others.
SEED = int(os.environ.get("GARDEN_SEED", 1))

# Traces that nobody names.
STATE = tempfile.mkdtemp(prefix="garden-state-")
atexit.register(shutil.rmtree, STATE, ignore_errors=True)

if PACKAGE_FOLDER not in sys.path:
    sys.path.insert(0, PACKAGE_FOLDER)

# Scripts start what they put in the background with Ctrl-C ignored. Programs inherit that and rightly keep it, but tests interrupt them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def binary():
    """The binary to test with, or None."""
    from model_garden import BinaryNotFound, find_binary

    for built in ("release", "debug"):
        path = os.path.join(REPOSITORY, "target", built, "model-garden")
        if "MODEL_GARDEN_BINARY" not in os.environ and os.access(path, os.X_OK):
            return path
    try:
        return find_binary()
    except BinaryNotFound:
        return None


if os.environ.get("CI") and not binary():
    raise SystemExit("CI runs the tests that need the binary: build it, or set MODEL_GARDEN_BINARY")
needs_binary = unittest.skipUnless(
    sys.platform == "linux" and binary(), "no `model-garden` binary: run `make build`, or set MODEL_GARDEN_BINARY"
)


def environment(**more):
    """The environment of a child: our package, our binary, and no watcher unless the test sets one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MODEL_GARDEN_", "PYTHON"))}
    variables["PYTHONPATH"] = PACKAGE_FOLDER
    variables["XDG_STATE_HOME"] = STATE
    if binary():
        variables["MODEL_GARDEN_BINARY"] = binary()
    variables.update({name: value for name, value in more.items() if value is not None})
    for name, value in more.items():
        if value is None:
            variables.pop(name, None)
    return variables


def strict_python(*words):
    """The command of a child that fails on any warning, leaks of files and sockets included."""
    return [sys.executable, "-X", "dev", "-W", "error", *words]


def run_program(command, **more):
    """Runs a child to its end; its output is text."""
    folder = more.pop("cwd", None)
    return subprocess.run(
        command,
        env=environment(**more),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        universal_newlines=True,
    )


class FolderCase(unittest.TestCase):
    """A test with a folder of its own."""

    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="garden-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def program(self, name, *words, **more):
        """Runs one of the programs of the tests in the test's folder; it must succeed."""
        more.setdefault("XDG_STATE_HOME", self.path("state"))
        done = run_program(strict_python(os.path.join(PROGRAMS, name), *words), cwd=self.folder, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def kept_traces(self):
        """Traces of the programs that nobody named a file for."""
        folder = self.path("state/model-garden/traces")
        return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []

    def trace_lines(self, path):
        with open(path) as file:
            return [json.loads(line) for line in file]


class Listener:
    """The other end of a channel: keeps what it hears, and can ask to stop."""

    def __init__(self, path):
        self.path = path
        self.messages = []
        self.connections = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(8)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self._read, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, connection):
        with connection.makefile("rb") as lines:
            try:
                for line in lines:
                    self.messages.append(json.loads(line))
            except (OSError, ValueError):
                pass

    def ask_to_stop(self):
        for connection in self.connections:
            connection.sendall(b'no json\n{"other":1}\n{"command":"stop"}\n')

    def wait_for(self, wanted):
        """Waits until a message is as `wanted` says."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if any(wanted(message) for message in list(self.messages)):
                return
            time.sleep(0.01)
        raise AssertionError(f"not heard; the last of {len(self.messages)} messages are {self.messages[-5:]}")

    def close(self):
        for hung_up in [self._socket, *self.connections]:
            try:
                hung_up.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(5)
        for hung_up in [self._socket, *self.connections]:
            hung_up.close()


def wait_until(condition, seconds=10.0):
    """Waits until something holds; says whether it does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
