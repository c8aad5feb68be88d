"""The common case of reading a row, faster: values as flows write them, in which times and exact numbers are the text
that a store keeps. It is sure of what it returns, or returns None and lets ``headrace.model.values`` look.

What must hold for it to be sure: msgspec finds every field of its type; no name is there twice (there are as many
names, each with its colon behind it, as fields were found); no number is longer than numbers are; times, dates and
exact numbers are in their one form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.model.kinds import Choice, Digits, Field, Kind, Plain
from headrace.model.texts import bytes_from

__all__ = ["QuickRows"]

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z"
).fullmatch
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
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


class _Unsure(Exception):
    pass


class QuickRows:
    """``plain`` are the functions that make a store's value of a default."""

    def __init__(self, fields: Sequence[Field], plain: Sequence[Callable[[Any], Any]]) -> None:
        self._decode: Callable[[bytes], Any] | None = None
        types = [_type(one) for one in fields]
        if None in types:
            return
        members = [
            (f"f{at}", kind, msgspec.field(default=UNSET, name=one.name))
            if one.optional
            else (f"f{at}", kind, msgspec.field(name=one.name))
            for at, (one, kind) in enumerate(zip(fields, types, strict=True))
        ]
        made = msgspec.defstruct("Row", members, kw_only=True, gc=False)
        self._decode = msgspec.json.Decoder(made).decode
        finish = [(at, _finisher(one.kind, one.optional)) for at, one in enumerate(fields)]
        self._finish = [(at, function) for at, function in finish if function is not None]
        self._defaults = [
            (at, None if one.default is None else plain[at](one.default))
            for at, one in enumerate(fields)
            if one.optional
        ]
        self._count = len(members)

    def row(self, value: bytes) -> tuple[Any, ...] | None:
        if self._decode is None:
            return None
        try:
            row = list(msgspec.structs.astuple(self._decode(value)))
            for at, finish in self._finish:
                if row[at] is not None and row[at] is not UNSET:
                    row[at] = finish(row[at])
            names = self._count
            for at, default in self._defaults:
                if row[at] is UNSET:
                    names -= 1
                    row[at] = default
                elif row[at] is None:
                    row[at] = default
            if value.count(b'":') != names or _may_hide(value):
                return None
        except (msgspec.DecodeError, ValueError, RecursionError, _Unsure):
            # Why it does not fit is for those to say who read it with care.
            return None
        return tuple(row)


def _may_hide(value: bytes) -> bool:
    if len(value) > _LONG_BYTES and _MANY_DIGITS(value) is not None:
        return True
    # Most values have no blank at all, which is found out fastest. And ``in`` would be four times as slow as ``find``.
    find = value.find
    return len(value.split(None, 1)) > 1 and max(find(b" :"), find(b"\t:"), find(b"\n:"), find(b"\r:")) >= 0


def _type(field: Field) -> Any:
    """None for what is left to others."""
    match field.kind:
        case Plain(name):
            kind = _TYPES[name]
        case Digits():
            # May be anything, null as well.
            return msgspec.Raw | UnsetType if field.optional else msgspec.Raw
        case Choice(values):
            kind = Literal[values]
        case _:
            return None
    return kind | None | UnsetType if field.optional else kind


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
        text = bytes(raw).decode()
        if fits(text) is None:
            if text == "null" and optional:
                return None
            raise _Unsure
        return text

    return finish
