"""Records out of a stream of bytes, by a percent format.

A field ends where its stated length says (``%K{big32}%k``), or at the literal text that follows it
(``%k,%v\\n``), or at the end of the input. The delimiter of the very last field may be missing at the end
of the input, since the last line of a file often lacks its new line. Anything else that does not match
stops the reading with the number of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.cli.format.numbers import NumberForm, number_form
from headrace.cli.format.source import Source
from headrace.cli.format.template import Field, FormatError, Part, take_apart
from headrace.cli.format.texts import InputError, text_decoder
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
_FIELDS = "%t %k %v (text), %T %K %V (lengths, before what they measure), %H %h{…} (headers), %p, %d"

Values = dict[str, bytes | int | list[Header]]
Step = Callable[[Source, Values], None]


class _Ended(Exception):
    """The stream ended; ``what`` was being read."""

    def __init__(self, what: str) -> None:
        self.what = what


def _literal(expected: bytes, *, last: bool) -> Step:
    def step(source: Source, values: Values) -> None:
        if last and source.at_end():
            return
        found = source.exactly(len(expected))
        if found is None:
            raise _Ended(f"{expected!r}")
        if found != expected:
            raise InputError(f"expected {expected!r} and found {found!r}")

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
            raise _Ended(name)
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
            raise InputError(f"the {name} {data[:40]!r} is not a number of the stated form") from None

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
            raise _Ended(_NAMES[letter])
        values[letter] = decode(data)

    return step


def _delimited_text(letter: str, delimiter: bytes, decode: Callable[[bytes], bytes], *, last: bool) -> Step:
    def step(source: Source, values: Values) -> None:
        data, delimited = source.until(delimiter)
        if not delimited and not last:
            raise _Ended(_NAMES[letter])
        values[letter] = decode(data)

    return step


def _open_text(letter: str, decode: Callable[[bytes], bytes]) -> Step:
    def step(source: Source, values: Values) -> None:
        values[letter] = decode(source.rest())

    return step


def _json_text(letter: str, decode: Callable[[bytes], bytes]) -> Step:
    def step(source: Source, values: Values) -> None:
        data = source.json_value()
        if data is None:
            raise _Ended(_NAMES[letter])
        values[letter] = decode(data)

    return step


def _headers(steps: Sequence[Step]) -> Step:
    def step(source: Source, values: Values) -> None:
        count = values["H"]
        assert isinstance(count, int)
        if count > HEADERS_MAX:
            raise InputError(f"the input states {count} headers, more than {HEADERS_MAX}")
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
    known: set[str] = set()
    index = 0
    while index < len(parts):
        part = parts[index]
        index += 1
        if isinstance(part, bytes):
            steps.append(_literal(part, last=whole and index == len(parts)))
            continue
        letter, modifier = part.letter, part.modifier
        if letter not in letters:
            raise FormatError(f"%{letter} is not something to read here", hint=f"there are: {_FIELDS}")
        if letter in known:
            raise FormatError(f"%{letter} appears twice")
        known.add(letter)
        if letter in "TKVHpd":
            if modifier and modifier.isdecimal():
                steps.append(_constant(letter, int(modifier)))
            else:
                steps.append(_number(letter, number_form(modifier)))
        elif letter == "h":
            if "H" not in known:
                raise FormatError("%h needs to know how many headers there are", hint="e.g. %H{2}%h{%k=%v;}")
            steps.append(_headers(_compile(take_apart(modifier or ""), letters="kvKV", whole=False)))
        else:
            decode = text_decoder(modifier)
            size_letter = letter.upper()
            following = parts[index] if index < len(parts) else None
            if size_letter in known:
                steps.append(_sized_text(letter, size_letter, decode))
            elif modifier == "json":
                steps.append(_json_text(letter, decode))
            elif isinstance(following, bytes):
                index += 1
                last = whole and index == len(parts)
                steps.append(_delimited_text(letter, following, decode, last=last))
            elif following is None and whole:
                steps.append(_open_text(letter, decode))
            else:
                after = f"%{following.letter}" if isinstance(following, Field) else "its header"
                raise FormatError(
                    f"nothing says where %{letter} ends and {after} begins",
                    hint=f"put text between them, or a length before: %{size_letter}{{big32}}%{letter}",
                )
    for size_letter, letter in (*_SIZES.items(), ("H", "h")):
        if size_letter in known and letter not in known:
            raise FormatError(f"%{size_letter} measures %{letter}, which does not follow")
    return steps


@dataclass(frozen=True, slots=True)
class Reader:
    steps: list[Step]
    spaced: bool
    """White space before a record means nothing: the format begins with JSON, which ends by itself."""

    def read(self, source: Source, *, topic: str) -> Iterator[Record]:
        """The records of a stream; ``topic`` is for those whose input names none."""
        number = 0
        while True:
            if self.spaced:
                source.skip_space()
            if source.at_end():
                return
            number += 1
            before = source.taken
            values: Values = {}
            try:
                for step in self.steps:
                    step(source, values)
            except _Ended as ended:
                raise InputError(f"record {number}: the input ended inside the {ended.what}") from None
            except InputError as error:
                raise InputError(f"record {number}: {error.message}", hint=error.hint) from None
            if source.taken == before:
                raise InputError(
                    f"record {number}: by this format a record is nothing, so it would never end"
                )
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
    parts = take_apart(template)
    if not any(isinstance(part, Field) for part in parts):
        raise FormatError(f"the format {template!r} reads nothing", hint=r"e.g. -f '%k,%v\n'")
    steps = _compile(parts, letters="tkvTKVHhpd", whole=True)
    first = parts[0]
    return Reader(steps, spaced=isinstance(first, Field) and first.modifier == "json")
