"""Parses records from a stream of bytes in a percent format.

A field ends after its length (``%K{big32}%k``), at the literal text that follows it (``%k,%v\\n``), or at the end of
the input. The last delimiter of the input can be missing, because the last line of a file often has no newline. Any
other mismatch is an error with the number of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.cli.format.modifiers import InputError, NumberForm, number_form, text_decoder
from headrace.cli.format.source import Source
from headrace.cli.format.template import Field, FormatError, Part, split_format
from headrace.cli.record import Header, Record

__all__ = ["Reader", "compile_reader"]

HEADERS_MAX = 10_000
_SIZES = {"T": "t", "K": "k", "V": "v"}
_NAMES = {
    "t": "topic",
    "k": "key",
    "v": "value",
    "p": "partition",
    "d": "timestamp",
    "H": "number of headers",
}
_FIELDS = "%t %k %v (text), %T %K %V (lengths, before their fields), %H %h{…} (headers), %p, %d"

Values = dict[str, bytes | int | list[Header]]
Step = Callable[[Source, Values], None]


class _InputEnded(Exception):
    """The stream ended inside ``what``."""

    def __init__(self, what: str) -> None:
        self.what = what


def _literal(expected: bytes, *, last: bool) -> Step:
    def step(source: Source, values: Values) -> None:
        if last and source.at_end():
            return
        found = source.exactly(len(expected))
        if found is None:
            raise _InputEnded(f"{expected!r}")
        if found != expected:
            raise InputError(f"expected {expected!r}, found {found!r}")

    return step


def _number(letter: str, form: NumberForm) -> Step:
    name = _NAMES.get(letter) or f"length of the {_NAMES[_SIZES[letter]]}"

    def read(source: Source) -> bytes | None:
        if form.kind == "digits":
            return source.digits()
        if form.kind == "bool":
            head = source.exactly(4)
            return b"false" if head == b"fals" and source.exactly(1) == b"e" else head
        return source.exactly(form.size)

    def step(source: Source, values: Values) -> None:
        data = read(source)
        if data is None:
            raise _InputEnded(name)
        try:
            match form.kind:
                case "digits":
                    values[letter] = int(data)
                case "hex":
                    values[letter] = int(data, 16)
                case "bool":
                    values[letter] = {b"true": 1, b"false": 0}[data]
                case "big" | "little":
                    values[letter] = int.from_bytes(data, form.kind)
        except (ValueError, KeyError):
            raise InputError(
                f"the {name} {data[:40]!r} does not match the number type in the format"
            ) from None

    return step


def _constant(letter: str, value: int) -> Step:
    def step(source: Source, values: Values) -> None:
        values[letter] = value

    return step


def _sized_text(letter: str, size_letter: str, decode: Callable[[bytes], bytes]) -> Step:
    def step(source: Source, values: Values) -> None:
        size = values[size_letter]
        assert isinstance(size, int)
        data = source.exactly(size)
        if data is None:
            raise _InputEnded(_NAMES[letter])
        values[letter] = decode(data)

    return step


def _delimited_text(letter: str, delimiter: bytes, decode: Callable[[bytes], bytes], *, last: bool) -> Step:
    def step(source: Source, values: Values) -> None:
        data, delimited = source.until(delimiter)
        if not delimited and not last:
            raise _InputEnded(_NAMES[letter])
        values[letter] = decode(data)

    return step


def _text_to_end(letter: str, decode: Callable[[bytes], bytes]) -> Step:
    def step(source: Source, values: Values) -> None:
        values[letter] = decode(source.rest())

    return step


def _json_text(letter: str, decode: Callable[[bytes], bytes]) -> Step:
    def step(source: Source, values: Values) -> None:
        data = source.json_value()
        if data is None:
            raise _InputEnded(_NAMES[letter])
        values[letter] = decode(data)

    return step


def _headers(steps: Sequence[Step]) -> Step:
    def step(source: Source, values: Values) -> None:
        count = values["H"]
        assert isinstance(count, int)
        if count > HEADERS_MAX:
            raise InputError(f"the input has {count} headers (maximum {HEADERS_MAX})")
        headers: list[Header] = []
        for _ in range(count):
            header: Values = {}
            for inner in steps:
                inner(source, header)
            key, value = header.get("k", b""), header.get("v")
            assert isinstance(key, bytes)
            assert value is None or isinstance(value, bytes)
            headers.append((key.decode("utf-8", "surrogateescape"), value))
        values["h"] = headers

    return step


def _compile(parts: Sequence[Part], *, letters: str, whole: bool) -> list[Step]:
    steps: list[Step] = []
    seen: set[str] = set()
    index = 0
    while index < len(parts):
        part = parts[index]
        index += 1
        if isinstance(part, bytes):
            steps.append(_literal(part, last=whole and index == len(parts)))
            continue
        letter, modifier = part.letter, part.modifier
        if letter not in letters:
            raise FormatError(f"%{letter} is not a field of the input", hint=f"use one of: {_FIELDS}")
        if letter in seen:
            raise FormatError(f"%{letter} appears twice")
        seen.add(letter)
        if letter in "TKVHpd":
            if modifier and modifier.isdecimal():
                steps.append(_constant(letter, int(modifier)))
            else:
                steps.append(_number(letter, number_form(modifier)))
        elif letter == "h":
            if "H" not in seen:
                raise FormatError("%h needs the number of headers before it", hint="e.g. %H{2}%h{%k=%v;}")
            steps.append(_headers(_compile(split_format(modifier or ""), letters="kvKV", whole=False)))
        else:
            decode = text_decoder(modifier)
            size_letter = letter.upper()
            next_part = parts[index] if index < len(parts) else None
            if size_letter in seen:
                steps.append(_sized_text(letter, size_letter, decode))
            elif modifier == "json":
                steps.append(_json_text(letter, decode))
            elif isinstance(next_part, bytes):
                index += 1
                last = whole and index == len(parts)
                steps.append(_delimited_text(letter, next_part, decode, last=last))
            elif next_part is None and whole:
                steps.append(_text_to_end(letter, decode))
            else:
                after = f"%{next_part.letter}" if isinstance(next_part, Field) else "its header"
                raise FormatError(
                    f"the format does not define where %{letter} ends and {after} begins",
                    hint=f"put text between them, or a length first: %{size_letter}{{big32}}%{letter}",
                )
    for size_letter, letter in (*_SIZES.items(), ("H", "h")):
        if size_letter in seen and letter not in seen:
            raise FormatError(f"%{size_letter} must be followed by %{letter}")
    return steps


@dataclass(frozen=True, slots=True)
class Reader:
    steps: list[Step]
    skips_space: bool
    """Whether to skip white space before a record: the format begins with JSON, which needs no delimiter."""

    def read(self, source: Source, *, topic: str) -> Iterator[Record]:
        """Parse the records of a stream. ``topic`` is the topic of records without a topic in the input."""
        record_number = 0
        while True:
            if self.skips_space:
                source.skip_space()
            if source.at_end():
                return
            record_number += 1
            before = source.consumed
            values: Values = {}
            try:
                for step in self.steps:
                    step(source, values)
            except _InputEnded as error_at_end:
                raise InputError(
                    f"record {record_number}: the input ended inside the {error_at_end.what}"
                ) from None
            except InputError as error:
                raise InputError(f"record {record_number}: {error.message}", hint=error.hint) from None
            if source.consumed == before:
                raise InputError(f"record {record_number}: the format matches zero bytes")
            yield _record(values, topic)


def _record(values: Values, topic: str) -> Record:
    key, value, named, headers = values.get("k"), values.get("v"), values.get("t"), values.get("h", [])
    partition, timestamp = values.get("p", -1), values.get("d", -1)
    assert key is None or isinstance(key, bytes)
    assert value is None or isinstance(value, bytes)
    assert isinstance(partition, int)
    assert isinstance(timestamp, int)
    assert isinstance(headers, list)
    return Record(
        topic=named.decode("utf-8", "replace") if isinstance(named, bytes) else topic,
        partition=partition,
        timestamp=timestamp,
        key=key,
        value=value,
        headers=headers,
    )


def compile_reader(template: str) -> Reader:
    parts = split_format(template)
    if not any(isinstance(part, Field) for part in parts):
        raise FormatError(f"the format {template!r} has no fields", hint=r"e.g. -f '%k,%v\n'")
    steps = _compile(parts, letters="tkvTKVHhpd", whole=True)
    first = parts[0]
    return Reader(steps, skips_space=isinstance(first, Field) and first.modifier == "json")
