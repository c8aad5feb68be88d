"""Records on their way to standard output: filtered, counted, printed.

The bytes are flushed per batch rather than per record, and never later than the offsets that say they were read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from headrace.cli.filters import Filter
from headrace.cli.format.printer import Printer, compile_printer
from headrace.cli.output import to_json
from headrace.cli.record import Record, as_json
from headrace.cli.session import Session

__all__ = ["Emitter", "choose_printer"]


def choose_printer(
    session: Session, template: str | None, *, pretty: bool | None, meta_only: bool
) -> Printer:
    """A percent format, or JSON: over several lines for a person at a terminal, on one line for anything else."""
    if template is not None and template != "json" and not session.out.as_json:
        return compile_printer(template)
    indented = pretty if pretty is not None else sys.stdout.isatty() and not session.out.as_json

    def write(record: Record, count: int) -> bytes:
        line = to_json(as_json(record, meta_only=meta_only))
        return (msgspec.json.format(line, indent=2) if indented else line) + b"\n"

    return write


class Emitter:
    def __init__(
        self, write: Callable[[bytes], object], printer: Printer, passes: Filter | None, limit: int | None
    ) -> None:
        self._write = write
        self._printer = printer
        self._passes = passes
        self._limit = limit
        self.count = 0

    @property
    def full(self) -> bool:
        return self._limit is not None and self.count >= self._limit

    def emit(self, record: Record) -> None:
        if self._passes is None or self._passes(record):
            self.count += 1
            self._write(self._printer(record, self.count))
