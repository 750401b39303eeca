"""Draws docs/recording.svg, the terminal recording in the README: runs a command of the binary in a terminal of its own and animates what it really printed.

    python3 docs/tools/recording.py            # `make recording`

The text is SVG text; the dots of charts (Braille characters, which fonts draw in different widths) become dots. One animation types the command, one uncovers
the output line by line, one scrolls. Where nothing moves, or motion is not wanted, the first chart stands still.
"""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from html import escape
from pathlib import Path

from blocks import REPOSITORY, binary

COLUMNS, ROWS = 92, 26
WIDTH, HEIGHT = 8.0, 17.0  # of a character
MARGIN, BAR = 14.0, 30.0
COMMAND = ["model-garden diagnose testdata/production/run2.log", "--examples 663 --batch-size 2 --gradient-accumulation 4 --memory-limit 32GB"]
TYPING_S, LINE_S, READING_S, END_S = 2.2, 0.035, 4.5, 6.0
# The first time it starts with most of the command typed, so that nobody looks at an empty terminal.
SKIPPED_S = 1.6
# Below its first chart, and below as much of these sections as the terminal shows, the recording rests.
CHART_ENDS, STOPS = "▲ knee", ["Likely causes", "What to do"]
COLOURS = {30: "#6e7681", 31: "#ff7b72", 32: "#56d364", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#56d4dd", 90: "#8b949e"}
TEXT, BACKGROUND = "#d7dde4", "#11161d"


def printed(command):
    """What the command prints to a terminal, as lines."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    variables = {"PATH": os.environ.get("PATH", ""), "HOME": "/", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    program = subprocess.Popen(command, cwd=REPOSITORY, stdin=follower, stdout=follower, stderr=follower, env=variables)
    os.close(follower)
    data = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:  # how a terminal says that nobody writes to it any more
            break
        if not more:
            break
        data += more
    os.close(leader)
    if program.wait() != 0:
        sys.exit(f"error: {' '.join(command)} ended with {program.returncode}\n{data.decode(errors='replace')}")
    return data.decode().replace("\r\n", "\n").rstrip("\n").split("\n")


def styled(line):
    """(text, class) pieces of a line with colour codes."""
    pieces, bold, dim, colour = [], False, False, None
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if code := re.fullmatch(r"\x1b\[([0-9;]*)m", part):
            for number in map(int, (code[1] or "0").split(";")):
                if number == 0:
                    bold, dim, colour = False, False, None
                elif number in (1, 2):
                    bold, dim = bold or number == 1, dim or number == 2
                elif number in COLOURS:
                    colour = number
        elif part:
            pieces.append((part, " ".join(filter(None, [bold and "b", dim and "d", colour and f"c{colour}"]))))
    return pieces


def dots(character):
    """The raised dots of a Braille character, as (column, row) of 2 x 4."""
    bits = ord(character) - 0x2800
    return [(x, y) for bit, (x, y) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]) if bits >> bit & 1]


def draw_line(line, row):
    """A line as text with the places of its words, and its dots as a path."""
    column, texts, path, top = 0, [], [], row * HEIGHT
    for text, name in styled(line):
        for run in re.findall(r"[\u2800-\u28ff]+|[\u2500-\u25ff]+|[^\u2500-\u28ff]+", text):
            if "\u2800" <= run[0] <= "\u28ff":
                for number, character in enumerate(run):
                    for x, y in dots(character):
                        path.append(f"M{(column + number + 0.25 + x / 2) * WIDTH:.3g} {top + (y + 0.5) * HEIGHT / 4:.4g}h0")
            elif run.strip():
                start = len(run) - len(run.lstrip())
                words = run.strip()
                attributes = f' class="{name}"' if name else ""
                texts.append(
                    f'<text x="{(column + start) * WIDTH:g}" y="{top + HEIGHT * 0.76:.5g}" textLength="{len(words) * WIDTH:g}"{attributes}>{escape(words)}</text>'
                )
            column += len(run)
    if path:
        texts.append(f'<path d="{"".join(path)}"/>')
    return "".join(texts)


def timetable(lines, first):
    """When each row is uncovered, and how far the screen has scrolled by then: (seconds, rows uncovered, rows scrolled);
    then how long all of it takes, and the rows that are seen in the first rest."""
    now, times = TYPING_S + 0.4, [(0.0, first, 0)]
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    rest = next(row for row, line in enumerate(plain) if CHART_ENDS in line) + 1
    stops = {rest, *(min(len(lines), plain.index(stop) + ROWS - 3) for stop in STOPS)}
    for row in range(first, len(lines) + 1):
        times.append((now, row, max(0, row - (ROWS - 1))))
        now += READING_S if row in stops and row < len(lines) else LINE_S
    return times, now + END_S, rest


def keyframes(name, times, total, place):
    return f"@keyframes {name}{{" + "".join(f"{time / total * 100:.2f}%{{transform:translateY({place(entry):g}px)}}" for entry in times for time in [entry[0]]) + "}"


def picture(lines):
    prompt = "$ "
    typed = [f"{prompt}{COMMAND[0]} \\", f"    {COMMAND[1]}"]
    lines = typed + [""] + lines
    first = len(typed)
    times, total, rest = timetable(lines, first)
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN + BAR
    colours = "".join(f".c{number}{{fill:{colour}}}" for number, colour in COLOURS.items())
    covers = keyframes("uncover", times, total, lambda entry: entry[1] * HEIGHT)
    scrolls = keyframes("scroll", times, total, lambda entry: -entry[2] * HEIGHT)
    share = TYPING_S / total * 100
    second = share * len(typed[0]) / len("".join(typed))
    types = (
        f"@keyframes one{{0%{{transform:translateX(0)}}{second:.2f}%{{transform:translateX({len(typed[0]) * WIDTH:g}px)}}100%{{transform:translateX({COLUMNS * WIDTH:g}px)}}}}"
        f"@keyframes two{{0%,{second:.2f}%{{transform:translateX(0)}}{share:.2f}%,100%{{transform:translateX({COLUMNS * WIDTH:g}px)}}}}"
    )
    style = (
        f"text{{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{TEXT};white-space:pre}}"
        f"path{{stroke:#79c0ff;stroke-width:2.1;stroke-linecap:round;fill:none}}.b{{font-weight:700}}.d{{opacity:.65}}{colours}{covers}{scrolls}{types}"
        f".cover{{fill:{BACKGROUND}}}#below{{transform:translateY({rest * HEIGHT:g}px)}}#one,#two{{transform:translateX({COLUMNS * WIDTH:g}px)}}"
        f"@media(prefers-reduced-motion:no-preference){{#lines,#below,#one,#two{{animation:scroll {total:.1f}s -{SKIPPED_S}s step-end infinite}}"
        f"#below{{animation-name:uncover}}#one,#two{{animation-name:one;animation-timing-function:linear}}#two{{animation-name:two}}}}"
    )
    body = "\n".join(filter(None, (draw_line(line, row) for row, line in enumerate(lines))))
    hide = f'width="{COLUMNS * WIDTH + 2:g}" height="{HEIGHT:g}" class="cover"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" aria-label="{escape(' '.join(COMMAND))}: settled, not a leak">
<style>{style}</style>
<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="9" fill="{BACKGROUND}" stroke="#57606a"/>
<circle cx="20" cy="17" r="5.5" fill="#ff5f57"/><circle cx="38" cy="17" r="5.5" fill="#febc2e"/><circle cx="56" cy="17" r="5.5" fill="#28c840"/>
<svg x="{MARGIN:g}" y="{BAR + MARGIN / 2:g}" width="{COLUMNS * WIDTH:g}" height="{ROWS * HEIGHT:g}"><g id="lines">
{body}
<rect id="one" x="{len(prompt) * WIDTH:g}" y="0" {hide}/><rect id="two" x="0" y="{HEIGHT:g}" {hide}/>
<rect id="below" x="0" y="0" width="{COLUMNS * WIDTH:g}" height="{(len(lines) + ROWS) * HEIGHT:g}" class="cover"/>
</g></svg>
</svg>
"""


if __name__ == "__main__":
    words = [str(binary()), *" ".join(COMMAND).split()[1:]]
    drawn = picture(printed(words))
    target = REPOSITORY / "docs/recording.svg"
    target.write_text(drawn)
    print(f"drew {target.relative_to(REPOSITORY)}: {len(drawn.encode()) / 1000:.0f} kB")
