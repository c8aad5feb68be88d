"""Encodes and decodes records of topics without a schema as JSON. A client writes a record such as:

{"key": {"text": "k1"}, "value": {"base64": "AP8="}, "headers": [{"name": "source", "text": "by hand"}], "partition": 2}
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.serve.errors import InvalidRequest
from headrace.serve.writes.records import WriteRecord

__all__ = ["RawRecord", "new_record", "record_json"]

_HEADERS_MAX = 100


def record_json(message: Any, bytes_max: int | None = None) -> dict[str, Any]:
    """Convert a record to JSON. A key, value or header longer than ``bytes_max`` is cut, and marked with ``cut``."""
    kind, stamp = message.timestamp()
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "at_ms": stamp if kind else None,
        "key": _part(message.key(), bytes_max),
        "value": _part(message.value(), bytes_max),
        "headers": [{"name": name, **(_part(raw, bytes_max) or {})} for name, raw in message.headers() or ()],
    }


def _part(raw: bytes | str | None, bytes_max: int | None) -> dict[str, Any] | None:
    """Convert a key, value or header: UTF-8 as text, other bytes as base64, with the size in bytes."""
    if raw is None:
        return None
    data = raw.encode() if isinstance(raw, str) else raw
    part: dict[str, Any] = {"size": len(data)}
    if bytes_max is not None and len(data) > bytes_max:
        part["cut"] = True
        # Do not split a UTF-8 character.
        data = data[:bytes_max]
        for back in range(1, min(4, len(data))):
            if data[-back] & 0b1100_0000 != 0b1000_0000:
                data = data[:-back] if data[-back] >= 0b1100_0000 else data
                break
    try:
        return part | {"text": data.decode()}
    except UnicodeDecodeError:
        return part | {"base64": base64.b64encode(data).decode()}


class RecordBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of text and base64 is set."""

    text: str | None = None
    base64: str | None = None


class RecordHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of text and base64 is set."""

    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    text: str | None = None
    base64: str | None = None


class RawRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: RecordBytes | None
    key: RecordBytes | None = None
    headers: Annotated[list[RecordHeader], Meta(max_length=_HEADERS_MAX)] = []
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


_decode = msgspec.json.Decoder(RawRecord).decode


def new_record(body: bytes, partitions: int) -> WriteRecord:
    try:
        record = _decode(body)
        headers = tuple((header.name, _raw(header, "a header") or b"") for header in record.headers)
        key, value = _raw(record.key, "key"), _raw(record.value, "value")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"invalid body: {error}") from None
    if record.partition is not None and record.partition >= partitions:
        raise InvalidRequest(
            f"partition {record.partition} does not exist",
            hint=f"the topic has {partitions} partitions, numbered from 0",
        )
    return WriteRecord(key, value, headers, -1 if record.partition is None else record.partition)


def _raw(part: RecordBytes | RecordHeader | None, what: str) -> bytes | None:
    if part is None:
        return None
    if (part.text is None) == (part.base64 is None):
        raise InvalidRequest(f"{what} must have exactly one of text and base64")
    if part.text is not None:
        return part.text.encode()
    try:
        return base64.b64decode(part.base64 or "", validate=True)
    except ValueError:
        raise InvalidRequest(f"{what} is not valid base64") from None
