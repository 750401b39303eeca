"""One measured process: the loop from its start through its steps, with a workaround, and a trace of what the whole tree holds after each step.

The time of a step is what the loop and the workaround took; reading memory is not in it. Memory is anonymous, swapped and shared memory of this
process and of all that it started, as a walk through the page tables finds it; of started ones, what they do not share with others.
"""
import importlib.util
import inspect
import json
import os
import signal
import sys
import time

from ..experiment import counters
from ..experiment.measured import places_of, versions, words_of
from ..experiment.pieces import PiecesError
from .loops import resolve
from .workarounds import ACTIONS

# A run that would take the machine down is ended before.
LEAST_AVAILABLE = 512 << 20
# A sign of life for who waits.
BEAT_S = 1.0


class Trouble(Exception):
    """A run that cannot be made, or not to its end; the text says why, with a hint."""

    def __init__(self, text, places=()):
        super().__init__(text)
        self.places = list(places)


def live(order, tell):
    """The life of a measured process. `order` says what to do; what comes of it is told, as dicts."""
    try:
        _Run(order, tell).through()
        tell({"done": True, "versions": versions()})
    except Trouble as trouble:
        tell({"error": str(trouble), "places": trouble.places})
    except PiecesError as error:
        tell({"error": str(error), "places": []})
    except MemoryError:
        tell({"error": "out of memory", "places": []})
    except Exception as error:
        tell({"error": f"cannot start the loop: {words_of(error)}", "places": places_of(error)})


class _Run:
    def __init__(self, order, tell):
        self.order = order
        self.tell = tell
        self.loop = resolve(order["loop"])
        self.check()
        self.settings = order["settings"]
        self.after = self._action()
        self.every = order["every"]
        self.number = 0
        self.seconds = 0.0
        self.told_at = time.monotonic()

    def check(self):
        """Finds what cannot work before anything runs, for all kinds of runs and not only this one."""
        if not callable(self.loop):
            raise Trouble(f"the loop is a {type(self.loop).__name__}, which is not callable\nhint: pass a generator function: each `yield` ends a step")
        parameters = inspect.signature(self.loop).parameters.values()
        takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
        names = [parameter.name for parameter in parameters if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
        for setting in self.order["known_settings"]:
            if not takes_all and setting not in names:
                has = f"it takes {', '.join(names)}" if names else "it takes none"
                raise Trouble(f"the loop has no setting `{setting}`; {has}\nhint: `def loop({setting}=...)`, or write an environment variable in capitals")
        for action in self.order["known_actions"]:
            if action == "empty_cache" and importlib.util.find_spec("torch") is None:
                raise Trouble("`empty_cache` needs torch, which is not installed here\nhint: omit it: it frees GPU memory, not host memory")

    def _action(self):
        action = self.order["after_step"]
        if action is None:
            return None
        return ACTIONS[action] if isinstance(action, str) else resolve(action)

    def through(self):
        total = self.order["warm_up"] + self.order["steps"]
        if self.order["process_every"]:
            steps = _InProcesses(self)
        else:
            steps = _started(self.loop, self.settings)
        with open(self.order["trace"], "w", encoding="utf-8") as trace:
            self._write(trace, {"model_garden_trace": 1, "facts": {}, "origin": self.order["origin"]})
            try:
                while self.number < total:
                    begin = time.perf_counter()
                    self._step(steps, total)
                    self.seconds += time.perf_counter() - begin
                    self._sample(trace)
            finally:
                steps.close()

    def _step(self, steps, total):
        try:
            next(steps)
        except StopIteration:
            raise Trouble(
                f"the loop ended after {self.number} of {total} steps\nhint: use fewer `steps`, or repeat the data in the loop"
            ) from None
        except Trouble:
            raise
        except Exception as error:
            raise Trouble(f"the loop raised at step {self.number + 1}: {words_of(error)}", places_of(error)) from None
        self.number += 1
        if self.after is not None and self.number % self.every == 0:
            try:
                self.after()
            except Exception as error:
                raise Trouble(f"the workaround `{self.order['name']}` raised after step {self.number}: {words_of(error)}", places_of(error)) from None

    def _sample(self, trace):
        held = counters.tree()
        sample = {"step": self.number, "time_s": round(self.seconds, 7), **held, **_gpu()}
        self._write(trace, sample)
        left = counters.available()
        if left is not None and left < LEAST_AVAILABLE:
            raise Trouble(f"the run was stopped at step {self.number}: only {left >> 20} MiB of memory was left\nhint: use fewer `steps` or a smaller loop")
        if time.monotonic() - self.told_at > BEAT_S:
            self.told_at = time.monotonic()
            self.tell({"step": self.number})

    @staticmethod
    def _write(trace, line):
        trace.write(json.dumps(line) + "\n")
        trace.flush()


def _started(loop, settings):
    """The loop, begun; it must give something that can be iterated and closed."""
    steps = loop(**settings)
    if not hasattr(steps, "__next__"):
        raise Trouble(f"the loop is not a generator: it returned a {type(steps).__name__}\nhint: end each step with `yield`")
    return steps if hasattr(steps, "close") else _Closing(steps)


class _Closing:
    """An iterator that can be closed like a generator."""

    def __init__(self, steps):
        self._steps = steps

    def __next__(self):
        return next(self._steps)

    def close(self):
        pass


class _InProcesses:
    """The steps of a loop in processes that are forked from this one and replaced every so many steps; each begins the loop anew."""

    def __init__(self, run):
        self.run = run
        self.left = 0
        self.pid = None

    def __next__(self):
        if self.left == 0:
            self.close()
            self._start()
            self.left = self.run.order["process_every"]
        os.write(self.orders, b"g")
        answer = self.answers.readline()
        self.left -= 1
        if answer != b"ok\n":
            self._raise(answer)

    def _raise(self, answer):
        if not answer:
            _, status = os.waitpid(self.pid, 0)
            self.pid = None
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
            raise Trouble(f"the loop's process exited by itself ({how})")
        told = json.loads(answer)
        if told["ended"]:
            raise StopIteration
        raise Trouble(f"the loop raised at step {self.run.number + 1}: {told['text']}", told["places"])

    def _start(self):
        their_orders, self.orders = os.pipe()
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                counters.end_with_parent(parent)
                counters.own_files()
                os.close(self.orders)
                os.close(reading)
                self._work(their_orders, writing)
                code = 0
            finally:
                os._exit(code)
        os.close(their_orders)
        os.close(writing)
        self.answers = os.fdopen(reading, "rb")

    def _work(self, orders, writing):
        """The life of such a process: a step for each order, until there are no more."""
        steps = None
        while os.read(orders, 1):
            try:
                steps = steps or _started(self.run.loop, self.run.settings)
                next(steps)
                answer = b"ok"
            except StopIteration:
                answer = json.dumps({"ended": True}).encode()
            except Exception as error:
                answer = json.dumps({"ended": False, "text": words_of(error), "places": places_of(error)}).encode()
            os.write(writing, answer + b"\n")
        if steps is not None:
            steps.close()

    def close(self):
        if self.pid is None:
            return
        os.close(self.orders)
        self.answers.close()
        _, self.pid = os.waitpid(self.pid, 0), None


def _gpu():
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            return {"gpu": torch.cuda.memory_reserved()}
    except Exception:
        pass
    return {}


def child_main(writing):
    """The life of a run in a fresh interpreter: its order comes from standard input."""
    order = json.loads(sys.stdin.buffer.read())
    counters.end_with_parent(order["parent"])
    sys.path[:0] = [folder for folder in order["path"] if folder not in sys.path]
    speak(writing, order)


def speak(writing, order):
    """Makes a run and tells what comes of it over a pipe."""
    # Ctrl-C ends this process like any other; who started it says so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe = os.fdopen(writing, "wb", buffering=0)
    live(order, lambda message: pipe.write(json.dumps(message).encode() + b"\n"))
    pipe.close()
