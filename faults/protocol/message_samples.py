"""Messages generated from their schemas, with values at the limits of each type."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from headrace.wire import Api, messages, versions
from headrace.wire.notation import Field, Struct

INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
TEXTS = ["", "a", "topic-1", "ünï", "日本", "🚰", "\0", "x" * 126, "y" * 127, "z" * 300]
BLOBS = [b"", b"\0", b"some bytes", bytes(range(256))]

OTHERS = [
    "ConsumerProtocolSubscription",
    "ConsumerProtocolAssignment",
    "RequestHeader",
    "ResponseHeader",
]
NAMES = [f"{api.title}{kind}" for api in Api for kind in ("Request", "Response")] + OTHERS


def all_versions(name: str) -> range:
    return messages.shape_of(name).versions


def pairs() -> Iterator[tuple[str, int]]:
    for name in NAMES:
        for version in all_versions(name):
            yield name, version


def sample(random: Random, name: str, version: int, *, tags: bool = True) -> Any:
    """Return a message with a value in nearly every field of the version, and defaults in the others."""
    cls = getattr(messages, name)
    return fill(random, cls, cls, version, tags)


def fill(random: Random, message: Any, cls: Any, version: int, tags: bool) -> Any:
    struct: Struct = cls.struct_
    fields = {
        field.name: field_value(random, message, field, version, tags)
        for field in struct.fields
        if version in field.versions and random.random() < 0.9 and (tags or field.tag is None)
    }
    return cls(**fields)


def field_value(random: Random, message: Any, field: Field, version: int, tags: bool) -> Any:
    if version in field.nullable and random.random() < 0.2:
        return None
    if field.is_array:
        return [value(random, message, field, version, tags) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    return value(random, message, field, version, tags)


def value(random: Random, message: Any, field: Field, version: int, tags: bool) -> Any:
    if field.struct is not None:
        return fill(random, message, getattr(message, field.type), version, tags)
    if field.type in INTEGERS:
        low, high = INTEGERS[field.type]
        return random.choice((low, high, 0, 1, -1 if low else 2, random.randint(low, high)))
    if field.type == "bool":
        return random.random() < 0.5
    if field.type == "float64":
        return random.choice((0.0, -1.5, 1e300))
    if field.type == "uuid":
        return random.choice((bytes(16), bytes(range(16))))
    return random.choice(TEXTS if field.type == "string" else BLOBS)


def stable_pairs() -> Iterator[tuple[Api, int]]:
    for api in Api:
        first, last = versions(api)
        for version in range(first, last + 1):
            yield api, version
