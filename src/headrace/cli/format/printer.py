"""Prints records as bytes in a percent format.

The format is compiled once into a list of functions, one per part. Printing a record calls the functions in order.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.cli.format.modifiers import number_form, text_printer, timestamp_printer
from headrace.cli.format.template import Field, FormatError, split_format
from headrace.cli.record import Header, Record

__all__ = ["Printer", "compile_printer"]

Printer = Callable[[Record, int], bytes]
"""Takes a record and the number of records printed so far, including this record."""

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
_UNAVAILABLE = {"x": "the producer id", "y": "the producer epoch", "|": "the last stable offset"}
_FIELDS = (
    "%t %k %v (text), %T %K %V (their lengths), %h{…} %H (headers), %p %o %e %d %a{timestamp-type} %[ %] %i"
)


def _header_printer(template: str) -> Callable[[Header], bytes]:
    steps: list[Callable[[Header], bytes]] = []
    for part in split_format(template):
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
    raise FormatError(f"%{part.letter} is not a field of a header", hint="inside %h{…} use %k %v %K %V")


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
        stamp = timestamp_printer(modifier)
        return lambda record, count: stamp(record.timestamp)
    if letter == "h":
        if modifier is None:
            raise FormatError("%h needs a format for each header", hint="e.g. %h{%k=%v }")
        each = _header_printer(modifier)
        return lambda record, count: b"".join([each(header) for header in record.headers])
    if letter == "a":
        name, _, form_name = (modifier or "").partition(";")
        if name != "timestamp-type":
            raise FormatError(
                f"%a{{{name}}} is not available to this client",
                hint="use %a{timestamp-type}, which prints 0 (create time) or 1 (log append time)",
            )
        form = number_form(form_name or None)
        return lambda record, count: form.write(record.timestamp_type)
    if letter in _UNAVAILABLE:
        raise FormatError(f"%{letter} ({_UNAVAILABLE[letter]}) is not available to this client")
    raise FormatError(f"%{letter} is not a field of a record", hint=f"use one of: {_FIELDS}")


def compile_printer(template: str) -> Printer:
    steps = [_step(part) for part in split_format(template)]

    def write(record: Record, count: int) -> bytes:
        return b"".join([step(record, count) for step in steps])

    return write
