"""Becomes a chain of wrappers, as `bash -c` and `accelerate launch` make one: sh, a Python launcher, and native_leak.py.

The shell and the launcher stay small; the training script, which is the grandchild, leaks 1 MiB a step in epochs of 20 steps.
Each of the three dies with its parent.
"""
import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if sys.argv[1:2] == ["launch"]:
    die_with_parent()
    sys.exit(subprocess.call([sys.executable, *sys.argv[2:]], preexec_fn=die_with_parent))
script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native_leak.py")
# The shell would replace itself by its last command: `exit` keeps it.
os.execvp("sh", ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, os.path.abspath(__file__), "launch", script])
