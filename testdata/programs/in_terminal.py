"""Runs a command in a terminal of its own and presses keys: in_terminal.py COLUMNSxROWS SECONDS=KEYS... -- COMMAND

What the terminal was sent goes to standard output as it is; the exit code is the command's. Ends after a minute at the latest.
"""
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

split = sys.argv.index("--")
columns, rows = map(int, sys.argv[1].split("x"))
presses = sorted((float(at), keys) for at, keys in (word.split("=", 1) for word in sys.argv[2:split]))
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[split + 1], sys.argv[split + 1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
begin = time.monotonic()
while time.monotonic() - begin < 60:
    if presses and time.monotonic() - begin >= presses[0][0]:
        os.write(terminal, presses.pop(0)[1].encode().decode("unicode_escape").encode())
    if not select.select([terminal], [], [], 0.05)[0]:
        continue
    try:
        shown = os.read(terminal, 65536)
    except OSError:  # the last process of the terminal has ended
        break
    os.write(1, shown)
else:
    os.kill(pid, 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
