"""The common case of reading a value, fast: it is sure of what it returns, or returns None and lets others look.

msgspec checks types, ranges and UTF-8 while it parses, faster than anything in Python could. Three things it does not
see, or not as they are needed here:

- Of two fields with one name it takes the last in silence. Every key ends in a quote and a colon, so a text with no
  more of those than there are distinct keys in the result has neither twins nor fields that the schema does not know.
- Numbers of a thousand digits. A text that is long enough to hold one is searched for such a run.
- Exact numbers and times in all their spellings: these come as text, and ``headrace.model.texts`` reads them.

What it takes, ``headrace.model.fitting`` takes as well and to the same result; that is the rule, and this only speed.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.model.fitting import FLOAT_NAMES, INT_MAX, INT_MIN
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.texts import bytes_from, date_from, exactly, time_from

__all__ = ["QuickDecoder", "quick_decoder"]

_LONG_NUMBER_BYTES = 1_000
# A number that long has such a run on one side of its point.
_MANY_DIGITS = re.compile(rb"[0-9]{300}").search
_ESCAPED = re.compile(r'[\x00-\x1f"\\]').search
_BLANK_BEFORE_COLON = re.compile(rb":(?<=[ \t\r\n]:)").search


@dataclass(frozen=True, slots=True)
class _Part:
    type: Any
    """What msgspec is told to expect."""
    finish: Callable[[Any], Any] | None = None
    """From what msgspec makes to the value; None where that is one already."""
    keys: Callable[[Any], int] | None = None
    """How many distinct keys of objects there are in it; None where there is none."""


def quick_decoder(fields: tuple[Field, ...]) -> QuickDecoder | None:
    """None where there is no quick way: msgspec knows no names that JSON must escape, and a column may have one."""
    return None if any(map(_ESCAPED, _names(fields))) else QuickDecoder(fields)


class QuickDecoder:
    """Made by ``quick_decoder``."""

    __slots__ = ("_decode", "_finish", "_keys")

    def __init__(self, fields: tuple[Field, ...]) -> None:
        row = _record(fields)
        assert row.finish is not None
        assert row.keys is not None
        self._decode = msgspec.json.Decoder(row.type).decode
        self._finish = row.finish
        self._keys = row.keys

    def decode(self, raw: bytes) -> dict[str, Any] | None:
        try:
            row = self._decode(raw)
            if raw.count(b'":') > self._keys(row) or _may_hide_keys(raw):
                return None
            if len(raw) > _LONG_NUMBER_BYTES and _MANY_DIGITS(raw):
                return None
            made: dict[str, Any] = self._finish(row)
        except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError):
            # Why it does not fit is for those to say who read it with care.
            return None
        return made


def _names(fields: tuple[Field, ...]) -> Iterator[str]:
    """Of all fields, those inside others too."""
    for field in fields:
        yield field.name
        kind = field.kind
        while isinstance(kind, Many | Named):
            kind = kind.of
        if isinstance(kind, Record):
            yield from _names(kind.fields)


def _may_hide_keys(raw: bytes) -> bool:
    """Whether the colon behind a key may stand apart from its quote; most texts have no blank at all."""
    return (32 in raw or 10 in raw or 13 in raw or 9 in raw) and _BLANK_BEFORE_COLON(raw) is not None


def _part(kind: Kind, optional: bool) -> _Part:
    match kind:
        case Plain(name):
            return _PLAIN[name]
        case Digits():
            return _Part(msgspec.Raw, functools.partial(_digits, exactly(kind), optional))
        case Choice(values):
            return _Part(Literal[values])
        case Many(of, element_optional):
            return _many(_part(of, element_optional), element_optional)
        case Named(of, element_optional):
            return _named(_part(of, element_optional), element_optional)
        case Record(fields):
            return _record(fields)


def _many(of: _Part, optional: bool) -> _Part:
    finish, keys = of.finish, of.keys
    return _Part(
        list[_nullable(of.type, optional)],  # type: ignore[misc]
        finish and (lambda found: [None if one is None else finish(one) for one in found]),
        keys and (lambda found: sum(keys(one) for one in found if one is not None)),
    )


def _named(of: _Part, optional: bool) -> _Part:
    finish, keys = of.finish, of.keys
    return _Part(
        dict[str, _nullable(of.type, optional)],  # type: ignore[misc]
        finish and (lambda found: {k: None if one is None else finish(one) for k, one in found.items()}),
        (lambda found: len(found) + sum(keys(one) for one in found.values() if one is not None))
        if keys
        else len,
    )


def _record(fields: tuple[Field, ...]) -> _Part:
    """Its struct has names of its own, since a column may have one that no attribute can have."""
    parts = [_part(field.kind, field.optional) for field in fields]
    declared: list[Any] = [
        (f"f{at}", _nullable(part.type, True) | UnsetType, UNSET) if field.optional else (f"f{at}", part.type)
        for at, (field, part) in enumerate(zip(fields, parts, strict=True))
    ]
    renamed = {f"f{at}": field.name for at, field in enumerate(fields)}
    made = msgspec.defstruct("Row", declared, rename=renamed, kw_only=True)

    names = tuple(field.name for field in fields)
    finishes = [(at, part.finish) for at, part in enumerate(parts) if part.finish]
    optionals = [(at, field) for at, field in enumerate(fields) if field.optional]
    nested = [(operator.attrgetter(f"f{at}"), part.keys) for at, part in enumerate(parts) if part.keys]
    as_tuple = msgspec.structs.astuple

    def finish(row: Any) -> dict[str, Any]:
        values = list(as_tuple(row))
        for at, complete in finishes:
            one = values[at]
            if one is not None and one is not UNSET:
                values[at] = complete(one)
        for at, field in optionals:
            if values[at] is None or values[at] is UNSET:
                values[at] = field.fresh_default()
        return dict(zip(names, values, strict=True))

    absent = [operator.attrgetter(f"f{at}") for at, _ in optionals]
    count = len(names)

    def keys(row: Any) -> int:
        there = count
        for get in absent:
            if get(row) is UNSET:
                there -= 1
        for get, keys_of in nested:
            one = get(row)
            if one is not None and one is not UNSET:
                there += keys_of(one)
        return there

    return _Part(made, finish, keys)


def _nullable(known: Any, optional: bool) -> Any:
    # What comes as Raw may be anything, null as well.
    return known | None if optional and known is not msgspec.Raw else known


def _digits(fit: Callable[[Decimal], Decimal], optional: bool, raw: msgspec.Raw) -> Decimal | None:
    text = bytes(raw).decode()
    if text[0] not in "-0123456789":
        if optional and text == "null":
            return None
        raise ValueError(text)
    return fit(Decimal(text))


def _float(found: float | str) -> float:
    return found if type(found) is float else float(found)


_PLAIN = {
    "text": _Part(str),
    "int": _Part(Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]),
    "float": _Part(float | Literal[FLOAT_NAMES], _float),
    "bool": _Part(bool),
    "time": _Part(str, time_from),
    "date": _Part(str, date_from),
    "bytes": _Part(str, bytes_from),
}
