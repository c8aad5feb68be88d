"""Prints data to standard output, and notes and errors to standard error.

Data is a table, or one JSON object per line with ``--json``. Both have the same rows. Colours are used only on a
terminal, and never if NO_COLOR is set.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

__all__ = ["Output", "columns", "to_json", "uses_colour"]

Row = Mapping[str, object]

_BUFFER_BYTES = 1 << 16
_RED, _YELLOW, _BOLD, _OFF = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"


def to_json(value: object) -> bytes:
    import msgspec  # Imported here, because the import would slow down --help.

    return msgspec.json.encode(value)


def uses_colour(stream: TextIO) -> bool:
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
    # A name or value from the broker must not send control characters to the terminal.
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in str(value))


def columns(rows: Sequence[Row]) -> list[str]:
    """Format rows as aligned lines under upper-case headings. Numbers are right-aligned."""
    if not rows:
        return []
    names = list(rows[0])
    cells = [[name.upper().replace("_", "-") for name in names]]
    cells += [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(names))]
    right_aligned = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in names]
    return [
        "  ".join(
            cell.rjust(width) if align_right else cell.ljust(width)
            for cell, width, align_right in zip(line, widths, right_aligned, strict=True)
        ).rstrip()
        for line in cells
    ]


class Output:
    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet

        # Write bytes, because a record can contain any bytes. Use a separate buffer, because PYTHONUNBUFFERED can turn
        # off the buffer of sys.stdout.
        self._raw = io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False), _BUFFER_BYTES)

    def write(self, data: bytes) -> None:
        self._raw.write(data)

    def json_line(self, value: object) -> None:
        self.write(to_json(value) + b"\n")

    def table(self, rows: Sequence[Row], *, empty: str = "") -> None:
        """Print one line per row. If the table is empty, print ``empty`` as a note."""
        if self.as_json:
            for row in rows:
                self.json_line(row)
        elif rows:
            heading, *lines = columns(rows)
            bold, off = (_BOLD, _OFF) if uses_colour(sys.stdout) else ("", "")
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
        """Print a line to standard error, unless ``--quiet`` is set."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def warn(self, line: str) -> None:
        yellow, off = (_YELLOW, _OFF) if uses_colour(sys.stderr) else ("", "")
        print(f"{yellow}warning:{off} {line}", file=sys.stderr, flush=True)


def show_error(text: str, *, stream: TextIO | None = None) -> None:
    stream = stream or sys.stderr
    red, off = (_RED, _OFF) if uses_colour(stream) else ("", "")
    print(f"{red}error:{off} {text}", file=stream, flush=True)
