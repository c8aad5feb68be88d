"""Record timestamps in formats: milliseconds, or by strftime's or Go's patterns, always in UTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from headrace.cli.format.numbers import number_form
from headrace.cli.format.template import FormatError, split_modifier

__all__ = ["stamp_printer"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Go writes a layout as the moment 2006-01-02 15:04:05 would look; longer pieces first, so that none hides
# another.
_GO_TO_STRFTIME = {
    "January": "%B",
    "Monday": "%A",
    "2006": "%Y",
    "Z07:00": "Z",
    "-07:00": "+00:00",
    "Z0700": "Z",
    "-0700": "+0000",
    "Jan": "%b",
    "Mon": "%a",
    "MST": "UTC",
    "01": "%m",
    "02": "%d",
    "_2": "%e",
    "15": "%H",
    "03": "%I",
    "04": "%M",
    "05": "%S",
    "06": "%y",
    "PM": "%p",
    "pm": "%P",
    "1": "%-m",
    "2": "%-d",
    "3": "%-I",
    "4": "%-M",
    "5": "%-S",
}
_GO_PIECE = re.compile("|".join([r"[.,][09]{1,9}(?!\d)", *map(re.escape, _GO_TO_STRFTIME), "%"]))


def _moment(ms: int) -> datetime | None:
    """None for what a calendar cannot hold: no timestamp at all, or one beyond the year 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=ms) if ms >= 0 else None
    except OverflowError:
        return None


def _strftime(pattern: str) -> Callable[[int], bytes]:
    def write(ms: int) -> bytes:
        moment = _moment(ms)
        return (
            str(ms).encode()
            if moment is None
            else moment.strftime(pattern).encode("utf-8", "surrogateescape")
        )

    return write


def _go(layout: str) -> Callable[[int], bytes]:
    def write(ms: int) -> bytes:
        moment = _moment(ms)
        if moment is None:
            return str(ms).encode()

        def piece(match: re.Match[str]) -> str:
            text = match[0]
            if text[0] in ".,":
                fraction = f"{moment.microsecond:06d}000"[: len(text) - 1]
                # Nines leave out trailing zeros, zeros keep them.
                fraction = fraction.rstrip("0") if text[1] == "9" else fraction
                return text[0] + fraction if fraction else ""
            return "%" if text == "%" else moment.strftime(_GO_TO_STRFTIME[text])

        return _GO_PIECE.sub(piece, layout).encode("utf-8", "surrogateescape")

    return write


def stamp_printer(modifier: str | None) -> Callable[[int], bytes]:
    name, argument = split_modifier(modifier) if modifier else ("", None)
    match name, argument:
        case "strftime", str(pattern):
            return _strftime(pattern)
        case "go", str(layout):
            return _go(layout)
        case "unix", None:
            return lambda ms: str(ms // 1_000).encode()
        case "iso", None:
            return _go("2006-01-02T15:04:05.000Z07:00")
        case "strftime" | "go", None:
            raise FormatError(f"{{{name}}} needs its pattern in brackets", hint="e.g. %d{strftime[%F %T]}")
    return number_form(modifier).write
