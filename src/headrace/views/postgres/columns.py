"""The columns of a view in PostgreSQL: of which type, how a value goes in and comes out, and which cannot be held.

    text, enum            text
    int                   bigint
    float                 double precision; NaN is a number here
    bool                  boolean
    decimal               numeric, with the declared digits
    time, date            timestamptz, date
    bytes                 bytea
    list, map, record     json, which keeps the text as it was put in; jsonb would change it

Texts of the key are sorted by their bytes (``COLLATE "C"``): an index that does not break when the system's rules for a
language change, and finds prefixes.

A text with a NUL cannot be held, nor a key of more bytes than fit into a page of an index.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Choice, Digits, Field, Plain
from headrace.views.errors import ShapeRefused
from headrace.views.position import Shape
from headrace.views.rows import Row
from headrace.views.store import Refusals

__all__ = [
    "KEY_BYTES_MAX",
    "column_type",
    "copied",
    "expect_room",
    "plain_row",
    "quoted",
    "refusals",
    "selected",
]

KEY_BYTES_MAX = 2_600
_NAME_BYTES_MAX = 63
_ROW_BYTES_MAX = 8_000
_TYPES = {
    "text": "text",
    "int": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "time": "timestamp with time zone",
    "date": "date",
    "bytes": "bytea",
}
_TIME = """to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
_ESCAPED = re.compile(r"[\\\t\n\r]").search
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NULL = "\\N"


def quoted(name: str) -> str:
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
        raise ShapeRefused(
            f"{name[:80]!r} cannot name a column or a table in PostgreSQL",
            hint=f"a name has 1 to {_NAME_BYTES_MAX} bytes",
        )
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def column_type(field: Field) -> str:
    """As the server itself spells it."""
    match field.kind:
        case Plain(name):
            return _TYPES[name]
        case Digits(precision, scale):
            return f"numeric({precision},{scale})"
        case Choice():
            return "text"
    return "json"


def expect_room(shape: Shape) -> None:
    """A row has its place in one page; what is long is kept elsewhere, but leaves a pointer."""
    room = sum(9 if isinstance(one.kind, Plain) and one.kind.name != "text" else 25 for one in shape.fields)
    if room > _ROW_BYTES_MAX:
        raise ShapeRefused(
            f"{len(shape.fields)} columns do not fit into a row of PostgreSQL",
            hint="split the view in several, or keep it in another store",
        )


def selected(field: Field) -> str:
    """What gives the value back as it was put in."""
    name = quoted(field.name)
    match field.kind:
        case Plain("time"):
            return _TIME.format(name)
        case Plain("date"):
            return f"to_char({name}, 'YYYY-MM-DD')"
        case Plain() | Choice():
            return name
    return f"{name}::text"


def plain_row(shape: Shape) -> Callable[[tuple[Any, ...]], Row]:
    floats = [at for at, one in enumerate(shape.fields) if one.kind == Plain("float")]

    def made(found: tuple[Any, ...]) -> Row:
        if all(found[at] == found[at] for at in floats):
            return found
        return tuple("NaN" if one != one else one for one in found)

    return made


# On the way in: the text format of COPY


def copied(kinds: Sequence[Field], rows: Iterable[Row]) -> bytes:
    """Lines for COPY. Column by column, since that is several times faster than value by value."""
    columns = [
        _line_texts(field, values) for field, values in zip(kinds, zip(*rows, strict=True), strict=True)
    ]
    return ("\n".join(map("\t".join, zip(*columns, strict=True))) + "\n").encode()


def _line_texts(field: Field, values: tuple[Any, ...]) -> list[str]:
    match field.kind:
        case Plain("int"):
            # Raises OverflowError for what is no bigint.
            array("q", [one for one in values if one is not None])
            return [_NULL if one is None else str(one) for one in values]
        case Plain("float"):
            return [_NULL if one is None else str(one) for one in values]
        case Plain("bool"):
            return [_NULL if one is None else "t" if one else "f" for one in values]
        case Plain("bytes"):
            return [_NULL if one is None else f"\\\\x{one.hex()}" for one in values]
        case Digits() | Plain("time" | "date"):
            return [_NULL if one is None else one for one in values]
    return [_NULL if one is None else one.translate(_ESCAPES) if _ESCAPED(one) else one for one in values]


# What cannot be held


def refusals(shape: Shape) -> Refusals:
    names = shape.names
    texts = [at for at, one in enumerate(shape.fields) if column_type(one) == "text"]
    places = shape.key_places
    # Each column has its own length or number beside it, and begins where its kind may begin.
    room = KEY_BYTES_MAX - 16 * (len(places) - 1)

    def row(made: Row) -> None:
        for at in texts:
            value = made[at]
            if value is not None and "\0" in value:  # type: ignore[operator]
                raise ValueDoesNotFit("a text with a NUL, which PostgreSQL cannot hold", path=names[at])
        key([made[at] for at in places])

    def key(values: Sequence[object]) -> None:
        size = 0
        for one, name in zip(values, shape.key, strict=True):
            if isinstance(one, str):
                if "\0" in one:
                    raise ValueDoesNotFit("a text with a NUL, which PostgreSQL cannot hold", path=name)
                size += len(one)
        if size > room // 4:
            size = sum(len(one.encode("utf-8", "replace")) for one in values if isinstance(one, str))
            if size > room:
                raise ValueDoesNotFit(
                    f"{size} bytes, and such a key in PostgreSQL has at most {room}",
                    path=", ".join(shape.key),
                )

    return Refusals(row, key)
