"""The interface of value codecs. A codec encodes the values and keys of one schema as bytes, and decodes them.

JSON (``json_codec``) is the only format today. A further format, such as Avro or Protobuf, would be selected in this
module by the topic's declaration. Code outside this package must not assume that values are JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from headrace.model.codec.json_codec import JsonCodec, JsonKeyCodec
from headrace.model.errors import AppError
from headrace.model.schema import Schema

if TYPE_CHECKING:
    from headrace.model.declarations import Topic
    from headrace.model.upcast import Upcaster

__all__ = [
    "Codec",
    "KeyCodec",
    "codec_of",
    "decode_key",
    "decode_record",
    "decode_value",
    "encode_key",
    "encode_record",
    "encode_value",
    "new_codec",
    "new_key_codec",
    "value_decoder",
]

_CODECS_MAX = 1_000


class KeyCodec(Protocol):
    def encode(self, value: Any) -> bytes:
        """Return the key of the record that has this value."""

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Return the fields of the key."""


class Codec(Protocol):
    @property
    def schema(self) -> Schema: ...

    def encode(self, value: Any) -> bytes:
        """``value`` is a dataclass or a mapping. Raises ``ValueDoesNotFit``."""

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Return all fields of the schema, in the schema's order. Raises ``ValueDoesNotFit``."""

    def normalize(self, raw: bytes) -> bytes:
        """Decode ``raw`` and encode the value again. Returns ``raw`` unchanged if the new encoding would alter the
        value, or if ``raw`` does not fit the schema.
        """

    def key(self, names: tuple[str, ...]) -> KeyCodec:
        """Return the codec for keys that consist of these fields."""


def new_codec(schema: Schema) -> Codec:
    return JsonCodec(schema)


def value_decoder(schema: Schema, upcast: Upcaster | None) -> Callable[[bytes], dict[str, Any]]:
    """Return the function that decodes the values of a topic, after its upcasters."""
    decode = new_codec(schema).decode
    return decode if upcast is None else lambda raw: decode(upcast.apply(raw))


def new_key_codec(schema: Schema, names: tuple[str, ...]) -> KeyCodec:
    return JsonKeyCodec(schema, names)


def codec_of(schema: Schema) -> Codec:
    """Return the cached codec of a schema. The cache uses the identity, because hashing a schema is slower."""
    codec = _codecs.get(id(schema))
    if codec is None:
        if len(_codecs) >= _CODECS_MAX:
            _codecs.clear()
        codec = _codecs[id(schema)] = JsonCodec(schema)
    return codec


def _schema(topic: Topic) -> Schema:
    if topic.schema is None:
        raise AppError(
            f"topic {topic.name!r} has no declared schema; only the flow that writes it knows the schema",
            location=topic.location,
            code="HR-APP-NO-SCHEMA",
            hint=f"declare a schema: app.topic({topic.name!r}, YourDataclass, ...)",
        )
    return topic.schema


# Each codec references its schema, so the schema is not freed and its id is not reused.
_codecs: dict[int, Codec] = {}


def encode_value(schema: Schema, value: Any) -> bytes:
    """``value`` is a dataclass or a mapping."""
    return codec_of(schema).encode(value)


def decode_value(schema: Schema, raw: bytes) -> dict[str, Any]:
    return codec_of(schema).decode(raw)


def encode_key(topic: Topic, value: Any) -> bytes:
    """``value`` is the value of the record, a dataclass or a mapping."""
    return codec_of(_schema(topic)).key(topic.key).encode(value)


def encode_record(topic: Topic, value: Any) -> tuple[bytes | None, bytes]:
    codec = codec_of(_schema(topic))
    return (codec.key(topic.key).encode(value) if topic.key else None), codec.encode(value)


def decode_record(topic: Topic, raw: bytes) -> dict[str, Any]:
    """Return the fields of a record's value, after the topic's upcasters."""
    codec = codec_of(_schema(topic))
    return codec.decode(raw if topic.upcast is None else topic.upcast.apply(raw))


def decode_key(topic: Topic, raw: bytes) -> dict[str, Any]:
    """Return the fields of the key. A record without a value has only these fields."""
    return codec_of(_schema(topic)).key(topic.key).decode(raw)
