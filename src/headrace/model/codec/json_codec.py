"""JSON, the format of values and keys.

A value is a JSON object with all fields of its schema. None is written as null. The kinds are written as follows:

    text       a string                          time     "2026-01-31T12:00:00.123456Z"
    int        a number of 64 bits               date     "2026-01-31"
    float      a number, or "NaN", "Infinity",   bytes    base64
               "-Infinity"                       enum     its string
    bool       true, false                       list, dict, dataclass   a list, an object, an object
    Decimal    a number with its exact digits: 12.500000

A key with a single field is the text of that field, without quotes and escapes. A key of several fields is a compact
JSON object. Its fields have the order of the key: ``{"product_id":"p1","minute":"2026-01-31T12:00:00.000000Z"}``.

The decoder also accepts values without optional fields, values with additional fields, times with another UTC offset,
and exact numbers as strings. Any other deviation raises ValueDoesNotFit.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec

from headrace.model.codec.encode import writer_of_fields
from headrace.model.codec.fast_decode import fast_decoder
from headrace.model.codec.json_text import parse
from headrace.model.codec.strict_decode import fit, fit_fields
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Enum, Kind, Scalar
from headrace.model.schema import Schema

__all__ = ["JsonCodec", "JsonKeyCodec"]

_WRITTEN_AS_STRINGS = (Scalar("text"), Scalar("time"), Scalar("date"), Scalar("bytes"))


class JsonCodec:
    """Implements ``headrace.model.codec.codec.Codec``."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._fast = fast_decoder(schema.fields)
        self._write = writer_of_fields(schema.fields)
        self._encode = msgspec.json.Encoder().encode
        self._keys: dict[tuple[str, ...], JsonKeyCodec] = {}

    def encode(self, value: Any) -> bytes:
        return self._encode(self._write(value))

    def decode(self, raw: bytes) -> dict[str, Any]:
        row = self._fast.decode(raw) if self._fast else None
        return fit_fields(self.schema.fields, parse(raw)) if row is None else row

    def normalize(self, raw: bytes) -> bytes:
        try:
            encoded = self.encode(self.decode(raw))
            is_same = encoded == raw or _loads(encoded) == _loads(raw)
        except (ValueDoesNotFit, ValueError, RecursionError):
            return raw
        return encoded if is_same else raw

    def key(self, names: tuple[str, ...]) -> JsonKeyCodec:
        codec = self._keys.get(names)
        if codec is None:
            codec = self._keys[names] = JsonKeyCodec(self.schema, names)
        return codec


class JsonKeyCodec:
    def __init__(self, schema: Schema, names: tuple[str, ...]) -> None:
        fields = [schema.field(name) for name in names]
        missing = [name for name, field in zip(names, fields, strict=True) if field is None]
        if missing or not names:
            raise ValueDoesNotFit(
                f"{schema.name} has no field {missing[0]!r}" if missing else "the key has no fields"
            )
        self._fields = tuple(field for field in fields if field is not None)
        is_text = len(self._fields) == 1 and self._fields[0].kind == Scalar("text")
        self._text_name = self._fields[0].name if is_text else None
        """The field name if the key is a single text; else None. Decoding such a key needs no checks except UTF-8."""
        self._write = writer_of_fields(self._fields, reject_unknown=False)
        self._encode = msgspec.json.Encoder().encode

    def encode(self, value: Any) -> bytes:
        written = self._write(value)
        null_name = next((name for name, text in written.items() if text is None), None)
        if null_name is not None:
            raise ValueDoesNotFit("a key cannot be None", path=null_name)
        if len(self._fields) > 1:
            return self._encode(written)
        (text,) = written.values()
        return text.encode() if isinstance(text, str) else self._encode(text)

    def decode(self, raw: bytes) -> dict[str, Any]:
        if self._text_name is not None:
            try:
                return {self._text_name: raw.decode()}
            except UnicodeDecodeError:
                pass  # The code below raises the error with its path.
        if len(self._fields) > 1:
            fields = fit_fields(self._fields, parse(raw))
        else:
            (field,) = self._fields
            try:
                fields = {field.name: fit(field.kind, _parse_single(field.kind, raw))}
            except ValueDoesNotFit as error:
                raise error.inside(field.name) from None
        return fields


def _loads(raw: bytes) -> Any:
    return json.loads(raw, parse_float=Decimal)


def _parse_single(kind: Kind, raw: bytes) -> Any:
    """Return the key of one field in the form that the JSON parser would return."""
    if not isinstance(kind, Enum) and kind not in _WRITTEN_AS_STRINGS:
        return parse(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueDoesNotFit(f"not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from None
