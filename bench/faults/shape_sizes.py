"""Lies about sizes in every array, text and blob of every request that the broker offers, in every version.

The requests are walked by their shapes: everything before the lie is written as small as it can be, and nothing comes
behind it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.faults.codec import int16, int32, string
from bench.faults.varints import uvarint
from headrace.broker.handlers import OFFERED
from headrace.wire import Api, messages, versions
from headrace.wire.api import flexible_from
from headrace.wire.notation import Field, Struct

__all__ = ["offered_pairs", "shape_lies"]

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
    """Every API that the broker offers, in every version."""
    return [
        (api, version) for api in sorted(OFFERED) for version in range(versions(api)[0], versions(api)[1] + 1)
    ]


def shape_lies(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """What it is, and the request without its size."""
    for api, version in offered_pairs():
        is_flexible = version >= flexible_from(api)
        head = int16(api) + int16(version) + int32(rng.getrandbits(31)) + string("liar")
        struct = messages.shape_of(f"{api.title}Request").struct
        start = head + (b"\0" if is_flexible else b"")
        for where, before, field in _sized(struct, version, is_flexible, start):
            claim = rng.choice(_claims(field, is_flexible))
            name = f"{claim} for {where} of {api.name} {version}"
            yield name, before + _stated(field, is_flexible, claim)


def _sized(
    struct: Struct, version: int, is_flexible: bool, before: bytes, path: str = ""
) -> Iterator[tuple[str, bytes, Field]]:
    """Every field with a length, with its name and what is written before it."""
    for field in struct.fields:
        if version not in field.versions or field.tag is not None:
            continue
        where = f"{path}{field.name}"
        compact = is_flexible and not field.inflexible
        if field.is_array:
            yield where, before, field
            if field.struct is not None:
                within = before + (uvarint(2) if compact else int32(1))
                yield from _sized(field.struct, version, is_flexible, within, f"{where}.")
            before += uvarint(1) if compact else int32(0)
        elif field.struct is not None:
            yield from _sized(field.struct, version, is_flexible, before, f"{where}.")
            # What follows a struct is reached in other requests too.
            return
        elif field.type in _FIXED_BYTES:
            before += bytes(_FIXED_BYTES[field.type])
        else:
            yield where, before, field
            before += _stated(field, compact, 0)


def _claims(field: Field, is_flexible: bool) -> tuple[int, ...]:
    if is_flexible and not field.inflexible:
        return _COMPACT_CLAIMS
    return _TEXT_CLAIMS if _is_text(field) else _ARRAY_CLAIMS


def _stated(field: Field, is_flexible: bool, size: int) -> bytes:
    if is_flexible and not field.inflexible:
        return uvarint(size + 1 if size < 2**32 - 1 else size)
    return int16(size) if _is_text(field) else int32(size)


def _is_text(field: Field) -> bool:
    return field.type == "string" and not field.is_array
