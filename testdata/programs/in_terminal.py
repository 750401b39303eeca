"""Runs a command in a terminal of its own and presses keys: in_terminal.py COLUMNSxROWS TEXT=KEYS... -- COMMAND

Keys are pressed when their text was shown since the keys before; without a text, when anything was. What the terminal was sent goes
to standard output as it is; the exit code is the command's. Ends after two minutes at the latest.
"""
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

split = sys.argv.index("--")
columns, rows = map(int, sys.argv[1].split("x"))
presses = [word.rsplit("=", 1) for word in sys.argv[2:split]]
pid, terminal = pty.fork()
if pid == 0:
    # Here, so that the terminal has its size before the command looks at it.
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.execvp(sys.argv[split + 1], sys.argv[split + 1:])
end = time.monotonic() + 120
since = b""
while time.monotonic() < end:
    if not select.select([terminal], [], [], 0.05)[0]:
        continue
    try:
        shown = os.read(terminal, 65536)
    except OSError:  # the last process of the terminal has ended
        break
    os.write(1, shown)
    since += shown
    # Without the sequences that move and colour.
    if presses and presses[0][0] in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", since).decode(errors="replace"):
        os.write(terminal, presses.pop(0)[1].encode().decode("unicode_escape").encode())
        since = b""
else:
    os.kill(pid, 9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
