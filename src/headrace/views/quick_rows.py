"""The common case of reading a row, faster: values as flows write them, in which times and exact numbers are the text
that a store keeps. It is sure of what it returns, or returns None and lets ``headrace.model.values`` look.

What must hold for it to be sure: msgspec finds every field of its type; no name is there twice (there are as many
names, each with its colon behind it, as fields were found); no number is longer than numbers are; times, dates and
exact numbers are in their one form. Values that have all of their fields, as flows write them, take the shortest way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from headrace.model.kinds import Choice, Digits, Field, Kind, Plain
from headrace.model.texts import bytes_from

__all__ = ["QuickRows"]

_DAY = (
    r"(?!0000)[0-9]{4}-"
    r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
"""Any but the last of February in a leap year, for which the calendar is asked."""
_CLOCK = r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z"
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}" + _CLOCK).fullmatch
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_BLANKS = b" \t\n\r"
_LONG_BYTES = 1_000
_MANY_DIGITS = re.compile(rb"[0-9]{300}").search
_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": "NaN"}
_TYPES: dict[str, Any] = {
    "text": str,
    "int": Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    "float": float | Literal["NaN", "Infinity", "-Infinity"],
    "bool": bool,
    "time": str,
    "date": str,
    "bytes": str,
}
_WHOLE_TYPES: dict[Kind, Any] = {
    Plain("float"): float,
    Plain("time"): Annotated[str, msgspec.Meta(pattern=rf"\A{_DAY}{_CLOCK}\Z")],
    Plain("date"): Annotated[str, msgspec.Meta(pattern=rf"\A{_DAY}\Z")],
}
"""Where msgspec itself finds out about the common values; others are looked at again."""


class _Unsure(Exception):
    pass


class QuickRows:
    """``plain`` are the functions that make a store's value of a default."""

    def __init__(self, fields: Sequence[Field], plain: Sequence[Callable[[Any], Any]]) -> None:
        self._whole: Callable[[bytes], Any] | None = None
        self._count = len(fields)
        types = [_type(one) for one in fields]
        if None in types:
            return
        self._whole = _decoder(
            [
                (f"f{at}", _whole_type(one, kind), msgspec.field(name=one.name))
                for at, (one, kind) in enumerate(zip(fields, types, strict=True))
            ]
        )
        self._parts = _decoder(
            [
                (f"f{at}", kind | UnsetType, msgspec.field(default=UNSET, name=one.name))
                if one.optional
                else (f"f{at}", kind, msgspec.field(name=one.name))
                for at, (one, kind) in enumerate(zip(fields, types, strict=True))
            ]
        )
        finish = [(at, _finisher(one.kind, one.optional)) for at, one in enumerate(fields)]
        self._finish = [(at, function) for at, function in finish if function is not None]
        self._finish_whole = [(at, one) for at, one in self._finish if fields[at].kind not in _WHOLE_TYPES]
        self._defaults = [
            (at, None if one.default is None else plain[at](one.default))
            for at, one in enumerate(fields)
            if one.optional
        ]
        self._instead = [(at, default) for at, default in self._defaults if default is not None]
        self._unfinished = bool(self._finish_whole or self._instead)

    def row(self, value: bytes) -> tuple[Any, ...] | None:
        if self._whole is None or (len(value) > _LONG_BYTES and _MANY_DIGITS(value) is not None):
            return None
        # Without blanks every name has its colon behind it, and what looks like a name within a text only adds to it.
        names = value.translate(None, _BLANKS).count(b'":')
        try:
            if names == self._count:
                found = astuple(self._whole(value))
                if not self._unfinished:
                    return found
                row = list(found)
                for at, finish in self._finish_whole:
                    if row[at] is not None:
                        row[at] = finish(row[at])
                for at, default in self._instead:
                    if row[at] is None:
                        row[at] = default
                return tuple(row)
        except (msgspec.DecodeError, ValueError, RecursionError, _Unsure):
            # Some of these names are none, or it has a float in words, or a rare day.
            pass
        return self._row_of_parts(value, names)

    def _row_of_parts(self, value: bytes, names: int) -> tuple[Any, ...] | None:
        """Fields may be left out."""
        try:
            row = list(astuple(self._parts(value)))
            for at, finish in self._finish:
                if row[at] is not None and row[at] is not UNSET:
                    row[at] = finish(row[at])
        except (msgspec.DecodeError, ValueError, RecursionError, _Unsure):
            # Why it does not fit is for those to say who read it with care.
            return None
        found = self._count
        for at, default in self._defaults:
            if row[at] is UNSET:
                found -= 1
                row[at] = default
            elif row[at] is None:
                row[at] = default
        return tuple(row) if names == found else None


def _decoder(members: list[tuple[str, Any, Any]]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(msgspec.defstruct("Row", members, kw_only=True, gc=False)).decode


def _type(field: Field) -> Any:
    """None for what is left to others."""
    match field.kind:
        case Plain(name):
            kind = _TYPES[name]
        case Digits():
            # May be anything, null as well.
            return msgspec.Raw
        case Choice(values):
            kind = Literal[values]
        case _:
            return None
    return kind | None if field.optional else kind


def _whole_type(field: Field, kind: Any) -> Any:
    whole = _WHOLE_TYPES.get(field.kind)
    if whole is None:
        return kind
    return whole | None if field.optional else whole


def _finisher(kind: Kind, optional: bool) -> Callable[[Any], Any] | None:
    match kind:
        case Plain("float"):
            return lambda read: read if type(read) is float else _FLOATS[read]
        case Plain("time"):
            return _time
        case Plain("date"):
            return _date
        case Plain("bytes"):
            return bytes_from
        case Digits():
            return _digits(kind, optional)
    return None


def _time(text: str) -> str:
    if _TIME(text) is None:
        raise _Unsure
    datetime.fromisoformat(text)
    return text


def _date(text: str) -> str:
    if _DATE(text) is None:
        raise _Unsure
    date.fromisoformat(text)
    return text


def _digits(kind: Digits, optional: bool) -> Callable[[Any], str | None]:
    """As flows write it: all digits behind the point, none too many before it, and no minus before a zero."""
    front = f"[1-9][0-9]{{0,{kind.precision - kind.scale - 1}}}" if kind.precision > kind.scale else "0"
    behind = rf"\.[0-9]{{{kind.scale}}}" if kind.scale else ""
    fits = re.compile(rf"(?!-0(?:\.0+)?\Z)-?(?:0|{front}){behind}").fullmatch

    def finish(raw: msgspec.Raw) -> str | None:
        text = str(raw, "ascii")
        if fits(text) is None:
            if text == "null" and optional:
                return None
            raise _Unsure
        return text

    return finish
