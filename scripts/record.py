#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The recording in the README: a real session in a terminal, as it went.

record.py              records doc/images/session.cast and renders doc/images/session.svg
record.py CAST SVG     renders a recording

The recording is in asciinema's format, version 2 (`asciinema play doc/images/session.cast`). Commands are typed by the
script; what follows each is what it printed, when it printed it. It needs build/weft (or WEFT). PARAMS names the size
of the model (16M if nobody says).

The SVG moves where a viewer can, and stands with its last screen where it cannot. The screen is as high as the session
is long, so nothing scrolls; of what a terminal is told, carriage returns, erased lines, bold and colours are
understood.
"""
import fcntl
import html
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

SOURCE = pathlib.Path(__file__).resolve().parent.parent
IMAGES = SOURCE / "doc/images"
COLUMNS, PAUSE = 112, 5.0
SESSION = r"""
weft bench --make made --params "$PARAMS" --steps 1 --quiet > /dev/null 2>&1
mv made/step-0.safetensors step-41.safetensors && mv made/step-1.safetensors step-42.safetensors
set -f
type_in() {
    local word
    printf '\033[32m$\033[0m'
    for word in $1; do sleep 0.15 && printf ' \033[1m%s\033[0m' "$word"; done
    echo
    set +f && eval "$1"
    set -f
}
printf '\a' # the recording begins
type_in 'ls -sh step-*.safetensors'
sleep 0.7
type_in 'weft publish run-7 step-41.safetensors'
sleep 0.7
type_in 'weft follow run-7 worker.safetensors --no-progress &'
while [ ! -e worker.safetensors ]; do sleep 0.05; done
sleep 1.2
type_in 'weft publish run-7 step-42.safetensors'
until cmp -s worker.safetensors step-42.safetensors; do sleep 0.05; done
sleep 1
type_in 'cmp worker.safetensors step-42.safetensors && echo the same, bit for bit'
printf '\a' # … and ends
kill %1
wait 2> /dev/null
"""


# ---- recording ----


def record(cast):
    weft = pathlib.Path(os.environ.get("WEFT", SOURCE / "build/weft")).resolve()
    events, begin, ended, pending = [], None, False, b""
    with tempfile.TemporaryDirectory() as room:
        environment = {**os.environ, "PATH": f"{weft.parent}:{os.environ['PATH']}", "HOME": room,
                       "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LC_ALL": "C.UTF-8",
                       "PARAMS": os.environ.get("PARAMS", "16M")}
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        shell = subprocess.Popen(["bash", "-c", SESSION], cwd=room, env=environment, stdin=subprocess.DEVNULL,
                                 stdout=theirs, stderr=theirs)
        os.close(theirs)
        while True:
            ready, _, _ = select.select([ours], [], [], 300)
            if not ready:
                shell.kill()
                sys.exit("record.py: nothing was printed for five minutes")
            try:
                data = os.read(ours, 65536)
            except OSError:
                break
            before, bell, after = data.partition(b"\a")
            if begin is None:
                if not bell:
                    continue
                begin, data = time.monotonic(), after
            elif bell:
                data, ended = before, True
            elif ended:
                continue
            pending += data
            try:
                text, pending = pending.decode(), b""
            except UnicodeDecodeError:
                continue
            events.append([round(time.monotonic() - begin, 3), "o", text])
        if shell.wait() != 0 or not events:
            sys.exit(f"record.py: the session failed: {''.join(event[2] for event in events)}")
    rows = len(screen_after(events)) + 1
    header = {"version": 2, "width": COLUMNS, "height": rows, "env": {"TERM": "xterm-256color"}, "title": "weft"}
    cast.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in [header, *events]) + "\n")


# ---- a terminal ----

COLOURS = {"31": "#ff7b72", "32": "#3fb950", "33": "#d29922", "34": "#58a6ff", "36": "#39c5cf", "2": "#8b949e"}
CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[=>]|[\r\n\a\b]|[^\x1b\r\n\a\b]+")


class Screen:
    """Lines of cells; a cell is a character with its style."""

    def __init__(self):
        self.lines, self.row, self.column, self.style = [[]], 0, 0, ("", False)

    def put(self, text):
        for character in text:
            if self.column == COLUMNS:
                self.down()
                self.column = 0
            line = self.lines[self.row]
            line.extend([(" ", ("", False))] * (self.column + 1 - len(line)))
            line[self.column] = (character, self.style)
            self.column += 1

    def down(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    def control(self, words, letter):
        if letter == "m":
            for word in words.split(";"):
                if word in ("", "0"):
                    self.style = ("", False)
                elif word == "1":
                    self.style = (self.style[0], True)
                elif word in COLOURS:
                    self.style = (COLOURS[word], self.style[1])
        elif letter == "K":
            del self.lines[self.row][0 if words == "2" else self.column :]
        elif letter == "A":
            self.row = max(0, self.row - int(words or 1))

    def write(self, text):
        for match in CODE.finditer(text):
            token = match.group()
            if match.group(2):
                self.control(match.group(1), match.group(2))
            elif token == "\n":
                self.down()
            elif token == "\r":
                self.column = 0
            elif token == "\b":
                self.column = max(0, self.column - 1)
            elif token[0] not in "\x1b\a":
                self.put(token)


def screen_after(events):
    screen = Screen()
    for _, _, text in events:
        screen.write(text)
    return screen.lines


# ---- the picture ----

WIDE, HIGH, LEFT, TOP = 7.7, 18, 14, 34


def line_of(cells):
    """A line as spans of one style each."""
    spans, begin = [], 0
    for end in range(1, len(cells) + 1):
        if end == len(cells) or cells[end][1] != cells[begin][1]:
            text = "".join(cell[0] for cell in cells[begin:end]).replace(" ", "\u00a0")
            colour, bold = cells[begin][1]
            style = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if bold else "")
            spans.append(f"<tspan{style}>{html.escape(text)}</tspan>" if style else html.escape(text))
            begin = end
    return "".join(spans)


def render(cast, target):
    lines = [json.loads(line) for line in cast.read_text().splitlines()]
    events, screen, shown, pieces = lines[1:], Screen(), {}, []
    for at, _, text in events:
        screen.write(text)
        for row, cells in enumerate(screen.lines):
            line = line_of(cells)
            if shown.get(row, (None, ""))[1] != line:
                if row in shown and shown[row][1]:
                    pieces.append((row, shown[row][1], shown[row][0], at))
                shown[row] = (at, line)
    length = events[-1][0] + PAUSE
    pieces += [(row, line, at, None) for row, (at, line) in shown.items() if line]
    width, height = LEFT * 2 + COLUMNS * WIDE, TOP + HIGH * len(screen.lines) + 10
    rules, texts = [], []
    for number, (row, line, begin, end) in enumerate(pieces):
        stops = [(0, 0), (begin, 1)] + ([(end, 0)] if end is not None else [])
        frames = "".join(f"{100 * at / length:.2f}%{{opacity:{value}}}" for at, value in stops)
        rules.append(f"@keyframes f{number}{{{frames}}}#t{number}{{animation:f{number} {length:.1f}s step-end infinite"
                     f"{'' if end is None else ';opacity:0'}}}")
        hidden = "" if end is None else ' opacity="0"'
        texts.append(f'<text id="t{number}" x="{LEFT}" y="{TOP + HIGH * (row + 1) - 4}"{hidden}>{line}</text>')
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-size="12.8" '
        'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" fill="#e6edf3">'
        f'<style>@media (prefers-reduced-motion:no-preference){{{"".join(rules)}}}</style>'
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117" stroke="#7d8590"/>'
        '<circle cx="20" cy="17" r="5" fill="#ff7b72"/><circle cx="38" cy="17" r="5" fill="#d29922"/>'
        '<circle cx="56" cy="17" r="5" fill="#3fb950"/>\n' + "\n".join(texts) + "\n</svg>\n")


def main(words):
    if len(words) == 2:
        render(pathlib.Path(words[0]), pathlib.Path(words[1]))
    elif not words:
        record(IMAGES / "session.cast")
        render(IMAGES / "session.cast", IMAGES / "session.svg")
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
