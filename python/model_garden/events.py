"""The program's end of the event channel: JSON lines over a Unix socket, and a `stop` that may come back.

docs/events.md describes the messages. The rules here: nothing blocks (what the watcher does not take at once waits in a short backlog),
nothing raises once the channel is made, a failure is told once and then the channel is silent, and a forked process never speaks
on its parent's channel.
"""
import os
import threading
import time
import weakref

from .speech import warn_once

ENVIRONMENT = "MODEL_GARDEN_EVENTS"
CONNECT_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 0.5
# How long a full socket is left alone before it is tried again.
FLUSH_PAUSE_S = 0.02
# A watcher that is stopped for a while loses nothing; one that has stopped reading must not fill our memory.
LARGEST_BACKLOG_BYTES = 1 << 20
# A longer line is no command; see LONGEST_LINE on the other end.
LONGEST_LINE_BYTES = 1 << 20

_channels = weakref.WeakSet()


def _after_fork_in_child():
    for channel in list(_channels):
        channel._forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Channel:
    """A connection to whoever watches. Construction raises OSError if nobody listens; nothing raises afterwards."""

    def __init__(self, path):
        import socket

        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._backlog = bytearray()
        self._is_flushing = False
        self._process = os.getpid()
        self._socket = None
        self._do_not_wait = socket.MSG_DONTWAIT
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.connect(os.fspath(path))
            # Blocking for the thread that listens; what is sent says for each call that it must not wait.
            connection.settimeout(None)
            self._listener = threading.Thread(
                target=_listen, args=(connection, self._stop), name="model-garden-events", daemon=True
            )
            self._listener.start()
        except BaseException:
            connection.close()
            raise
        self._socket = connection
        _channels.add(self)
        # An interpreter that ends with the socket open would complain of it in development mode.
        import atexit

        atexit.register(self.close)

    @property
    def is_open(self):
        """Whether messages still reach somebody."""
        return self._socket is not None and os.getpid() == self._process

    @property
    def should_stop(self):
        """Whether the watcher has asked to save a checkpoint and end."""
        return self._stop.is_set()

    def tell(self, **message):
        """Sends one message, or keeps it until there is room; says whether the channel is still open."""
        if not self.is_open:
            return False
        try:
            import json

            line = json.dumps(message, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError) as error:
            warn_once("message", f"dropped a message that cannot be written as JSON: {error}")
            return True
        try:
            with self._lock:
                self._backlog += line
                self._send_backlog()
                if self._backlog and not self._is_flushing:
                    # The next message may be far away: an evaluation can take an hour.
                    self._is_flushing = True
                    threading.Thread(target=self._flush, name="model-garden-flush", daemon=True).start()
        except Exception as error:
            self._lose(error)
        return self.is_open

    def _send_backlog(self):
        if self._socket is None:
            return
        try:
            sent = self._socket.send(self._backlog, self._do_not_wait)
            del self._backlog[:sent]
        except BlockingIOError:
            if len(self._backlog) > LARGEST_BACKLOG_BYTES:
                raise

    def _flush(self):
        """Sends the backlog as the watcher takes it, beside the program."""
        try:
            while True:
                with self._lock:
                    self._send_backlog()
                    if not self._backlog or not self.is_open:
                        self._is_flushing = False
                        return
                time.sleep(FLUSH_PAUSE_S)
        except Exception as error:
            self._lose(error)

    def _lose(self, error):
        reason = "it stopped reading" if isinstance(error, BlockingIOError) else f"it is gone ({error})"
        warn_once("channel", f"lost the connection to the watcher: {reason}. Training continues.")
        self._hang_up()

    def close(self):
        """Sends what is left, waiting no longer than a moment, and hangs up."""
        try:
            if self.is_open and self._backlog:
                with self._lock:
                    self._socket.settimeout(CLOSE_TIMEOUT_S)
                    self._socket.sendall(self._backlog)
        except Exception:
            pass  # The watcher has gone first; nothing that it would still want to know.
        self._hang_up()

    def _hang_up(self):
        try:
            connection, self._socket = self._socket, None
            self._backlog.clear()
            _channels.discard(self)
            import atexit

            atexit.unregister(self.close)
            if connection is not None:
                _wake_and_close(connection, self._listener)
        except Exception:
            pass

    def _forget_in_child(self):
        """In a forked process: closes this process's copy of the socket, without a word to the watcher."""
        try:
            connection, self._socket = self._socket, None
            self._lock = threading.Lock()  # it may have been held by a thread that does not exist here
            self._backlog = bytearray()
            self._is_flushing = False
            if connection is not None:
                connection.close()
        except Exception:
            pass


class Silence:
    """Stands where a channel would be: nobody listens."""

    is_open = False
    should_stop = False

    def tell(self, **message):
        """Says nothing."""
        return False

    def close(self):
        """Does nothing."""


def connect(path):
    """A channel to this socket, or `Silence` and one warning if nobody listens there."""
    try:
        return Channel(path)
    except Exception as error:
        warn_once("channel", f"nothing listens at `{path}` ({error}); steps and events are not reported")
        return Silence()


def _listen(connection, stop):
    """Reads what the watcher sends until it hangs up; knows one command, `stop`."""
    rest = b""
    try:
        while True:
            received = connection.recv(4096)
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            rest = rest[:LONGEST_LINE_BYTES]
            if any(_is_stop(line) for line in lines):
                stop.set()
    except Exception:
        return  # Hung up, here or there.


def _is_stop(line):
    import json

    try:
        return json.loads(line)["command"] == "stop"
    except (KeyError, TypeError, ValueError):
        return False


def _wake_and_close(connection, listener):
    import socket

    try:
        # Closing alone would leave the listener waiting for ever.
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    if listener is not threading.current_thread():
        listener.join(CLOSE_TIMEOUT_S)
    connection.close()
