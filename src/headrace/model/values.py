"""Values and keys of a topic's records, as bytes.

A value is a JSON object with all of its schema's fields, null for none:

    text       a string                          time     "2026-01-31T12:00:00.123456Z"
    int        a number of 64 bits               date     "2026-01-31"
    float      a number, or "NaN", "Infinity",   bytes    base64
               "-Infinity"                       enum     its string
    bool       true, false                       list, dict, dataclass   a list, an object, an object
    Decimal    a number with its exact digits: 12.500000

A key is the text of its one field, as it is (no quotes, no escapes), or for several a compact JSON object of them in
the order of the key: ``{"product_id":"p1","minute":"2026-01-31T12:00:00.000000Z"}``.

What is read may also leave out optional fields, have fields that the schema does not know, write times with another
offset and exact numbers as strings. Everything else that is not as it must be raises ValueDoesNotFit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import AppError, ValueDoesNotFit
from headrace.model.fitting import fit, fit_fields
from headrace.model.json_text import parse
from headrace.model.kinds import Choice, Kind, Plain
from headrace.model.quick import quick_decoder
from headrace.model.schema import Schema
from headrace.model.writing import writer_of_fields

if TYPE_CHECKING:
    from headrace.model.topic import Topic

__all__ = [
    "Codec",
    "KeyCodec",
    "codec_of",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_record",
    "encode_value",
]

_CODECS_MAX = 1_000
_AS_STRING = (Plain("text"), Plain("time"), Plain("date"), Plain("bytes"))


class Codec:
    """Made once for a schema; whoever reads many values keeps it at hand."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._quick = quick_decoder(schema.fields)
        self._write = writer_of_fields(schema.fields)
        self._encode = msgspec.json.Encoder().encode
        self._keys: dict[tuple[str, ...], KeyCodec] = {}

    def encode(self, value: Any) -> bytes:
        return self._encode(self._write(value))

    def decode(self, raw: bytes) -> dict[str, Any]:
        """All fields of the schema, in its order."""
        found = self._quick.decode(raw) if self._quick else None
        return fit_fields(self.schema.fields, parse(raw)) if found is None else found

    def key(self, names: tuple[str, ...]) -> KeyCodec:
        made = self._keys.get(names)
        if made is None:
            made = self._keys[names] = KeyCodec(self.schema, names)
        return made


class KeyCodec:
    """The key that some fields of a schema make."""

    def __init__(self, schema: Schema, names: tuple[str, ...]) -> None:
        fields = [schema.field(name) for name in names]
        missing = [name for name, field in zip(names, fields, strict=True) if field is None]
        if missing or not names:
            raise ValueDoesNotFit(
                f"{schema.name} has no field {missing[0]!r}" if missing else "there is no key"
            )
        self._fields = tuple(field for field in fields if field is not None)
        self._write = writer_of_fields(self._fields, all_of_them=False)
        self._encode = msgspec.json.Encoder().encode

    def encode(self, value: Any) -> bytes:
        written = self._write(value)
        none = next((name for name, one in written.items() if one is None), None)
        if none is not None:
            raise ValueDoesNotFit("a key cannot be None", path=none)
        if len(self._fields) > 1:
            return self._encode(written)
        (one,) = written.values()
        return one.encode() if isinstance(one, str) else self._encode(one)

    def decode(self, raw: bytes) -> dict[str, Any]:
        if len(self._fields) > 1:
            found = fit_fields(self._fields, parse(raw))
        else:
            (field,) = self._fields
            try:
                found = {field.name: fit(field.kind, _parsed(field.kind, raw))}
            except ValueDoesNotFit as error:
                raise error.inside(field.name) from None
        return found


def _parsed(kind: Kind, raw: bytes) -> Any:
    """A key of one field, as if it had been a part of JSON."""
    if not isinstance(kind, Choice) and kind not in _AS_STRING:
        return parse(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueDoesNotFit(f"not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from None


def codec_of(schema: Schema) -> Codec:
    """The codec of the schema, made at the first call; by identity, since the hash of a schema costs more."""
    held = _codecs.get(id(schema))
    if held is None:
        if len(_codecs) >= _CODECS_MAX:
            _codecs.clear()
        held = _codecs[id(schema)] = Codec(schema)
    return held


def _schema(topic: Topic) -> Schema:
    if topic.schema is None:
        raise AppError(
            f"the schema of topic {topic.name!r} is known only to the flow that writes it",
            place=topic.place,
            code="HR-APP-NO-SCHEMA",
            hint=f"declare one: app.topic({topic.name!r}, YourDataclass, ...)",
        )
    return topic.schema


# Each holds its schema, so that no other can get the same id.
_codecs: dict[int, Codec] = {}


def encode_value(schema: Schema, value: Any) -> bytes:
    """A dataclass or a mapping, as the value of a record."""
    return codec_of(schema).encode(value)


def decode_value(schema: Schema, raw: bytes) -> dict[str, Any]:
    return codec_of(schema).decode(raw)


def encode_key(topic: Topic, value: Any) -> bytes:
    """The key of the record that has the dataclass or mapping as its value."""
    return codec_of(_schema(topic)).key(topic.key).encode(value)


def encode_record(topic: Topic, value: Any) -> tuple[bytes | None, bytes]:
    codec = codec_of(_schema(topic))
    return (codec.key(topic.key).encode(value) if topic.key else None), codec.encode(value)


def decode_key(topic: Topic, raw: bytes) -> dict[str, Any]:
    """The fields of a key: all that a record without a value has."""
    return codec_of(_schema(topic)).key(topic.key).decode(raw)
