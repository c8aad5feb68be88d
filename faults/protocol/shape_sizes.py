"""False sizes in every array, string and bytes field of every request that the broker supports, in every version.

The schema of a request determines where its sizes are. Everything before the false size is as small as possible, and
nothing follows it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from faults.protocol.codec import int16, int32, string, uvarint
from headrace.broker.handlers import SUPPORTED_APIS
from headrace.wire import Api, messages, versions
from headrace.wire.api import flexible_from
from headrace.wire.notation import Field, Struct

__all__ = ["false_sizes", "offered_pairs"]

_FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
_COMPACT_CLAIMS = (2**28, 2**31 - 1, 2**31, 2**32 - 1)
_ARRAY_CLAIMS = (2**31 - 1, 2**30, -2, -(2**31))
_TEXT_CLAIMS = (2**15 - 1, -2, -(2**15))


def offered_pairs() -> list[tuple[Api, int]]:
    """Return every API of the broker in every version."""
    return [
        (api, version)
        for api in sorted(SUPPORTED_APIS)
        for version in range(versions(api)[0], versions(api)[1] + 1)
    ]


def false_sizes(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield a description, and the request without its frame size."""
    for api, version in offered_pairs():
        is_flexible = version >= flexible_from(api)
        head = int16(api) + int16(version) + int32(rng.getrandbits(31)) + string("liar")
        struct = messages.shape_of(f"{api.title}Request").struct
        start = head + (b"\0" if is_flexible else b"")
        for field_name, before, field in _fields_with_length(struct, version, is_flexible, start):
            claim = rng.choice(_claims(field, is_flexible))
            name = f"{claim} for {field_name} of {api.name} {version}"
            yield name, before + _encode_size(field, is_flexible, claim)


def _fields_with_length(
    struct: Struct, version: int, is_flexible: bool, before: bytes, path: str = ""
) -> Iterator[tuple[str, bytes, Field]]:
    """Yield every field with a length: its name, the bytes before it, and the field."""
    for field in struct.fields:
        if version not in field.versions or field.tag is not None:
            continue
        name = f"{path}{field.name}"
        compact = is_flexible and not field.inflexible
        if field.is_array:
            yield name, before, field
            if field.struct is not None:
                before_nested = before + (uvarint(2) if compact else int32(1))
                yield from _fields_with_length(field.struct, version, is_flexible, before_nested, f"{name}.")
            before += uvarint(1) if compact else int32(0)
        elif field.struct is not None:
            yield from _fields_with_length(field.struct, version, is_flexible, before, f"{name}.")
            # The fields after a struct are tested in other requests.
            return
        elif field.type in _FIXED_BYTES:
            before += bytes(_FIXED_BYTES[field.type])
        else:
            yield name, before, field
            before += _encode_size(field, compact, 0)


def _claims(field: Field, is_flexible: bool) -> tuple[int, ...]:
    if is_flexible and not field.inflexible:
        return _COMPACT_CLAIMS
    return _TEXT_CLAIMS if _is_text(field) else _ARRAY_CLAIMS


def _encode_size(field: Field, is_flexible: bool, size: int) -> bytes:
    if is_flexible and not field.inflexible:
        return uvarint(size + 1 if size < 2**32 - 1 else size)
    return int16(size) if _is_text(field) else int32(size)


def _is_text(field: Field) -> bool:
    return field.type == "string" and not field.is_array
