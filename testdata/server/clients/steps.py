"""What the scripts of the Python clients share: telling the result of each operation, and what the server counts."""

import contextlib
import os
import re
import sys
import time
import traceback
import urllib.request

ADDRESS, KEY, ROWS = (os.environ[name] for name in ("GARDEN_ADDRESS", "GARDEN_KEY", "GARDEN_ROWS"))
BASE = ADDRESS + "/v1"
MODEL = "gpt-4o-2024-08-06"
failures = []


@contextlib.contextmanager
def step(name):
    """An operation. The next one is tried, too, if it fails."""
    try:
        yield
        print(f"ok: {name}", flush=True)
    except Exception as error:
        failures.append(name)
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if os.path.dirname(frame.filename) == os.path.dirname(__file__) and frame.filename != __file__]
        print(f"failed: {name}: {type(error).__name__}: {error} (line {ours[-1].lineno} of {os.path.basename(ours[-1].filename)})", flush=True)


def end():
    sys.exit(1 if failures else 0)


def refused():
    """Answers so far with a status of 400 to 499."""
    request = urllib.request.Request(ADDRESS + "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as answer:
        return int(re.search(r'responses_total\{class="4xx"} (\d+)', answer.read().decode())[1])


@contextlib.contextmanager
def raises(kind):
    """That this is refused with this class of error, and that the client does not send it again."""
    before, caught = refused(), []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"it was not refused with {kind.__name__}"
    assert refused() - before == 1, f"the client sent it {refused() - before} times"


def until(look, *wanted):
    """What `look` gives once its status is one of those wanted."""
    deadline = time.monotonic() + 120
    while (found := look()).status not in wanted:
        assert time.monotonic() < deadline and found.status not in ("failed", "cancelled", "succeeded"), f"it is {found.status}: {found.error}"
        time.sleep(0.1)
    return found
