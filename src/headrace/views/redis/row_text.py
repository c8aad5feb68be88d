"""A row as text, and back: the field is the row's key as the log writes keys, the value its JSON as the log writes
values (``headrace.model.values``). So what a reader of the topic sees is what a reader of Redis sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from headrace.model.kinds import Digits, Kind, Many, Named, Plain, Record
from headrace.model.texts import bytes_text
from headrace.views.errors import StoreDamaged
from headrace.views.position import Shape
from headrace.views.rows import Row, Value

__all__ = ["RowText", "row_text"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_encode = msgspec.json.Encoder().encode
_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_KEPT = 256
_FLOATS: dict[str, float | str] = {"NaN": "NaN", "Infinity": math.inf, "-Infinity": -math.inf}


class RowText:
    def __init__(self, shape: Shape) -> None:
        self._names = shape.names
        self._key_names = shape.key
        self._places = shape.key_places
        writers = [_writer(one.kind) for one in shape.fields]
        self._writers = [(at, write) for at, write in enumerate(writers) if write is not None]
        self._key_writers = [writers[at] or _same for at in self._places]
        self._readers = [_reader(one.kind) for one in shape.fields]
        self._text_at = self._places[0] if shape.fields[self._places[0]].kind == Plain("text") else None
        if len(self._places) > 1:
            self._text_at = None

    def put(self, row: Row) -> tuple[bytes, bytes]:
        """The field and its value. Raises OverflowError or UnicodeEncodeError for what has no such text."""
        text = None if self._text_at is None else row[self._text_at]
        field = text.encode() if isinstance(text, str) else self.field(self.key_of(row))
        return field, self.value(row)

    def value(self, row: Row) -> bytes:
        values: list[Any] = list(row)
        for at, write in self._writers:
            if values[at] is not None:
                values[at] = write(values[at])
        return _encode(dict(zip(self._names, values, strict=True)))

    def field(self, key: Row) -> bytes:
        """``key`` is in the order of the view's key."""
        written = [write(one) for write, one in zip(self._key_writers, key, strict=True)]
        if len(written) > 1:
            return _encode(dict(zip(self._key_names, written, strict=True)))
        (one,) = written
        match one:
            case str():
                return one.encode()
            case bytes():
                return bytes_text(one).encode()
            case msgspec.Raw():
                return bytes(one)
        return _encode(one)

    def row(self, value: bytes) -> Row:
        try:
            found = _raws(value)
            return tuple(
                None if (raw := bytes(found[name])) == b"null" else read(raw)
                for name, read in zip(self._names, self._readers, strict=True)
            )
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise StoreDamaged(
                f"what is there for a row is none of this view: {value[:200]!r}",
                hint="somebody has changed it; build the view again: headrace view rebuild",
            ) from error

    def key_of(self, row: Row) -> Row:
        return tuple(row[at] for at in self._places)


@lru_cache(_KEPT)
def row_text(shape: Shape) -> RowText:
    """For who has one row to tell: made once for all of them. It holds nothing of a row, so any thread may use it."""
    return RowText(shape)


def _writer(kind: Kind) -> Callable[[Any], Any] | None:
    """None for what is written as it is."""
    match kind:
        case Plain("int"):
            return _int
        case Plain("float"):
            return _float
        case Digits() | Many() | Named() | Record():
            # JSON already.
            return _raw
    return None


def _same(value: Value) -> Value:
    return value


def _int(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise OverflowError(f"{value} has more than 64 bits")
    return value


def _float(value: float | str) -> float | str:
    if value in (math.inf, -math.inf):
        return "Infinity" if value == math.inf else "-Infinity"
    return value


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _reader(kind: Kind) -> Callable[[bytes], Value]:
    match kind:
        case Plain("int"):
            return msgspec.json.Decoder(int).decode
        case Plain("bool"):
            return msgspec.json.Decoder(bool).decode
        case Plain("bytes"):
            return msgspec.json.Decoder(bytes).decode
        case Plain("float"):
            return _float_of
        case Digits() | Many() | Named() | Record():
            return bytes.decode
    return msgspec.json.Decoder(str).decode


def _float_of(raw: bytes) -> Value:
    found = msgspec.json.decode(raw)
    return _FLOATS[found] if isinstance(found, str) else float(found)
