"""Encodes rows as JSON and decodes them.

The encoding is the same as in the log (``headrace.model.codec.codec``). So readers of the topic, of Redis and of the
HTTP server get the same text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from headrace.model.codec.scalar_text import bytes_text
from headrace.model.kinds import Digits, Kind, List, Map, Record, Scalar
from headrace.stores.errors import StoreDamaged
from headrace.stores.position import ViewSchema
from headrace.stores.rows import Row, Value

__all__ = ["RowJson", "row_json"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_CODECS_CACHED = 256
_FLOATS: dict[str, float | str] = {"NaN": "NaN", "Infinity": math.inf, "-Infinity": -math.inf}


class RowJson:
    """Thread-safe, because it has no state of its own."""

    def __init__(self, schema: ViewSchema) -> None:
        self._names = schema.names
        self._key_names = schema.key
        self._key_indexes = schema.key_indexes
        encoders = [_encoder(field.kind) for field in schema.fields]
        self._encoders = [(index, encode) for index, encode in enumerate(encoders) if encode is not None]
        self._key_encoders = [encoders[index] or _unchanged for index in self._key_indexes]
        self._decoders = [_decoder(field.kind) for field in schema.fields]
        first = self._key_indexes[0]
        is_one_text = len(self._key_indexes) == 1 and schema.fields[first].kind == Scalar("text")
        self._text_key_index = first if is_one_text else None

    def pair(self, row: Row) -> tuple[bytes, bytes]:
        """Encode the key and the row. Raises OverflowError or UnicodeEncodeError if a value cannot be encoded."""
        text = None if self._text_key_index is None else row[self._text_key_index]
        key = text.encode() if isinstance(text, str) else self.key(self.key_of(row))
        return key, self.value(row)

    def value(self, row: Row) -> bytes:
        values: list[Any] = list(row)
        for index, encode in self._encoders:
            if values[index] is not None:
                values[index] = encode(values[index])
        return _encode(dict(zip(self._names, values, strict=True)))

    def key(self, key: Row) -> bytes:
        """``key`` is in the order of the view's key."""
        encoded = [encode(value) for encode, value in zip(self._key_encoders, key, strict=True)]
        if len(encoded) > 1:
            return _encode(dict(zip(self._key_names, encoded, strict=True)))
        match encoded[0]:
            case str() as text:
                return text.encode()
            case bytes() as data:
                return bytes_text(data).encode()
            case msgspec.Raw() as raw:
                return bytes(raw)
            case value:
                return _encode(value)

    def row(self, value: bytes) -> Row:
        try:
            decoded = _decode_raw(value)
            return tuple(
                None if (raw := bytes(decoded[name])) == b"null" else decode(raw)
                for name, decode in zip(self._names, self._decoders, strict=True)
            )
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise StoreDamaged(
                f"cannot decode a stored row of the view: {value[:200]!r}",
                hint="another program might have changed the row; rebuild the view: headrace view rebuild",
            ) from error

    def key_of(self, row: Row) -> Row:
        return tuple(row[index] for index in self._key_indexes)


@lru_cache(_CODECS_CACHED)
def row_json(schema: ViewSchema) -> RowJson:
    return RowJson(schema)


def _encoder(kind: Kind) -> Callable[[Any], Any] | None:
    """Return the function that encodes a value, or None if msgspec can encode the value directly."""
    match kind:
        case Scalar("int"):
            return _checked_int
        case Scalar("float"):
            return _encoded_float
        case Digits() | List() | Map() | Record():
            # The value is already JSON.
            return _raw
    return None


def _unchanged(value: Value) -> Value:
    return value


def _checked_int(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise OverflowError(f"{value} has more than 64 bits")
    return value


def _encoded_float(value: float | str) -> float | str:
    if value in (math.inf, -math.inf):
        return "Infinity" if value == math.inf else "-Infinity"
    return value


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _decoder(kind: Kind) -> Callable[[bytes], Value]:
    match kind:
        case Scalar("int"):
            return msgspec.json.Decoder(int).decode
        case Scalar("bool"):
            return msgspec.json.Decoder(bool).decode
        case Scalar("bytes"):
            return msgspec.json.Decoder(bytes).decode
        case Scalar("float"):
            return _decoded_float
        case Digits() | List() | Map() | Record():
            return bytes.decode
    return msgspec.json.Decoder(str).decode


def _decoded_float(raw: bytes) -> Value:
    decoded = msgspec.json.decode(raw)
    return _FLOATS[decoded] if isinstance(decoded, str) else float(decoded)
