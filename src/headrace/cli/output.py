"""Where text goes: data to standard output, everything else to standard error.

A table for people, or one JSON object per line with ``--json``; both come from the same rows, so that
neither can know something that the other does not. Colour only on a terminal, and never when NO_COLOR is
set.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

__all__ = ["Output", "colour_wanted", "columns", "to_json"]

Row = Mapping[str, object]

_BUFFER_BYTES = 1 << 16
_RED, _YELLOW, _BOLD, _OFF = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"


def to_json(value: object) -> bytes:
    import msgspec  # Here, so that help need not wait for it.

    return msgspec.json.encode(value)


def colour_wanted(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value) or "-"
    # A name or a value from the broker must not be able to steer the terminal.
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in str(value))


def columns(rows: Sequence[Row]) -> list[str]:
    """Aligned lines under upper-case headings, numbers to the right."""
    if not rows:
        return []
    names = list(rows[0])
    cells = [[name.upper().replace("_", "-") for name in names]]
    cells += [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(names))]
    right = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]


class Output:
    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet

        # Bytes, since records may hold anything; and with a buffer of its own, since Python's may be switched off.
        self._raw = io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False), _BUFFER_BYTES)

    def write(self, data: bytes) -> None:
        self._raw.write(data)

    def json_line(self, value: object) -> None:
        self.write(to_json(value) + b"\n")

    def table(self, rows: Sequence[Row], *, empty: str = "") -> None:
        """One line per row; ``empty`` is what a person is told when there is none."""
        if self.as_json:
            for row in rows:
                self.json_line(row)
        elif rows:
            heading, *lines = columns(rows)
            bold, off = (_BOLD, _OFF) if colour_wanted(sys.stdout) else ("", "")
            self.text(f"{bold}{heading}{off}")
            for line in lines:
                self.text(line)
        elif empty:
            self.note(empty)
        self.flush()

    def text(self, line: str) -> None:
        self.write(line.encode("utf-8", "surrogateescape") + b"\n")

    def flush(self) -> None:
        self._raw.flush()

    def note(self, line: str) -> None:
        """Something good to know, which ``--quiet`` leaves out."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def warn(self, line: str) -> None:
        yellow, off = (_YELLOW, _OFF) if colour_wanted(sys.stderr) else ("", "")
        print(f"{yellow}warning:{off} {line}", file=sys.stderr, flush=True)


def show_error(text: str, *, stream: TextIO | None = None) -> None:
    stream = stream or sys.stderr
    red, off = (_RED, _OFF) if colour_wanted(stream) else ("", "")
    print(f"{red}error:{off} {text}", file=stream, flush=True)
