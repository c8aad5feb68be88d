"""Records as bytes, by a percent format.

A format is compiled once into a list of small functions, one per part, so that printing a record is a walk
over them.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.cli.format.numbers import number_form
from headrace.cli.format.stamps import stamp_printer
from headrace.cli.format.template import Field, FormatError, take_apart
from headrace.cli.format.texts import text_printer
from headrace.cli.record import Header, Record

__all__ = ["Printer", "compile_printer"]

Printer = Callable[[Record, int], bytes]
"""Takes a record and how many were printed up to and including it."""

_TEXTS: dict[str, Callable[[Record], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
}
_NUMBERS: dict[str, Callable[[Record], int]] = {
    "T": lambda record: len(record.topic.encode()),
    "K": lambda record: len(record.key or b""),
    "V": lambda record: len(record.value or b""),
    "H": lambda record: len(record.headers),
    "p": lambda record: record.partition,
    "o": lambda record: record.offset,
    "e": lambda record: record.leader_epoch,
    "[": lambda record: record.log_start,
    "]": lambda record: record.high_watermark,
}
_NOT_TOLD = {"x": "the producer id", "y": "the producer epoch", "|": "the last stable offset"}
_FIELDS = (
    "%t %k %v (text), %T %K %V (their lengths), %h{…} %H (headers), %p %o %e %d %a{timestamp-type} %[ %] %i"
)


def _header_printer(template: str) -> Callable[[Header], bytes]:
    steps: list[Callable[[Header], bytes]] = []
    for part in take_apart(template):
        steps.append(_header_step(part))
    return lambda header: b"".join([step(header) for step in steps])


def _header_step(part: bytes | Field) -> Callable[[Header], bytes]:
    if isinstance(part, bytes):
        literal = part
        return lambda header: literal
    match part.letter:
        case "k":
            write = text_printer(part.modifier)
            return lambda header: write(header[0].encode("utf-8", "surrogateescape"))
        case "v":
            write = text_printer(part.modifier)
            return lambda header: write(header[1] or b"")
        case "K":
            count = number_form(part.modifier)
            return lambda header: count.write(len(header[0].encode("utf-8", "surrogateescape")))
        case "V":
            count = number_form(part.modifier)
            return lambda header: count.write(len(header[1] or b""))
    raise FormatError(f"%{part.letter} is not part of a header", hint="inside %h{…} there are %k %v %K %V")


def _step(part: bytes | Field) -> Printer:
    if isinstance(part, bytes):
        literal = part
        return lambda record, count: literal
    letter, modifier = part.letter, part.modifier
    if letter in _TEXTS:
        text, write = _TEXTS[letter], text_printer(modifier)
        return lambda record, count: write(text(record))
    if letter in _NUMBERS:
        number, form = _NUMBERS[letter], number_form(modifier)
        return lambda record, count: form.write(number(record))
    if letter == "i":
        form = number_form(modifier)
        return lambda record, count: form.write(count)
    if letter == "d":
        stamp = stamp_printer(modifier)
        return lambda record, count: stamp(record.timestamp)
    if letter == "h":
        if modifier is None:
            raise FormatError("%h needs to be told how a header looks", hint="e.g. %h{%k=%v }")
        each = _header_printer(modifier)
        return lambda record, count: b"".join([each(header) for header in record.headers])
    if letter == "a":
        name, _, form_name = (modifier or "").partition(";")
        if name != "timestamp-type":
            raise FormatError(
                f"%a{{{name}}} is not told to clients of this kind",
                hint="there is %a{timestamp-type}: 0 or 1",
            )
        form = number_form(form_name or None)
        return lambda record, count: form.write(record.timestamp_type)
    if letter in _NOT_TOLD:
        raise FormatError(f"%{letter} ({_NOT_TOLD[letter]}) is not told to clients of this kind")
    raise FormatError(f"%{letter} is no field of a record", hint=f"there are: {_FIELDS}")


def compile_printer(template: str) -> Printer:
    steps = [_step(part) for part in take_apart(template)]

    def write(record: Record, count: int) -> bytes:
        return b"".join([step(record, count) for step in steps])

    return write
