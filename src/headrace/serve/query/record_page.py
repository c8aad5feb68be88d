"""Reads a page of a topic's committed records, starting at an offset of each partition."""

from __future__ import annotations

import base64
import contextlib
from typing import Annotated, Any

import msgspec
from confluent_kafka import IsolationLevel, Message
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from msgspec import UNSET, Meta, UnsetType

from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.clock import time_json
from headrace.serve.errors import InvalidCursor, InvalidRequest, RecordsDeleted
from headrace.serve.query.position_token import PositionToken, TopicPosition, from_opaque, to_opaque

__all__ = ["RecordCursor", "RecordDocument", "RecordPage", "offsets_at", "read_page"]

_CURSOR_CHARS_MAX = 16_000
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class RecordCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset at which a page starts, by partition. The id distinguishes the topic from a later topic with the same
    name.
    """

    topic_id: str
    offsets: dict[int, int]

    @classmethod
    def parse(cls, text: str) -> RecordCursor:
        if len(text) <= _CURSOR_CHARS_MAX:
            with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
                return _decoder.decode(from_opaque(text))
        raise InvalidCursor(
            "the cursor is not a cursor of a topic",
            hint="use the URL in the field next of the previous response, unchanged",
        )

    def encode(self) -> str:
        return to_opaque(msgspec.msgpack.encode(self))


_decoder = msgspec.msgpack.Decoder(RecordCursor)


class HeaderDocument(msgspec.Struct, frozen=True):
    name: str
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET


class RecordDocument(msgspec.Struct, frozen=True):
    """A key or header that is not UTF-8 is in base64, and so is a value that is not JSON."""

    partition: int
    offset: int
    time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: msgspec.Raw | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    headers: list[HeaderDocument] | UnsetType = UNSET


class RecordPage(msgspec.Struct, frozen=True):
    records: list[RecordDocument]
    next: RecordCursor
    at_end: bool
    """True if the page reached the end of the topic."""
    token: str
    """The position token of the end of this page, for ``after``."""


def offsets_at(cluster: Cluster, topic: str, time_ms: int) -> dict[int, int]:
    """Return the offset of the first record at or after the time, by partition. If a partition has none,
    return its end.
    """
    ends = cluster.ends(topic)
    # Kafka reserves negative timestamps for special offsets, so times before 1970 become 0.
    spec = OffsetSpec.for_timestamp(max(0, time_ms))
    offsets = cluster.offsets_of(topic, ends, spec, IsolationLevel.READ_COMMITTED)
    return {number: offsets[number] if offsets[number] >= 0 else end for number, end in ends.items()}


def read_page(
    cluster: Cluster, topic: str, topic_id: str, begin: dict[int, int], limit: int, bytes_max: int
) -> RecordPage:
    """Read from the offsets ``begin``, by partition. Raise ``RecordsDeleted`` if the log has deleted one of them."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    for number, offset in begin.items():
        if number not in ends or offset < 0 or offset > max(ends[number], starts[number]):
            extent = (
                f"the partition ends at {ends[number]}"
                if number in ends
                else f"the topic has {len(ends)} partitions"
            )
            raise InvalidRequest(f"partition {number} of topic {topic!r} has no offset {offset}: {extent}")
        if offset < starts[number]:
            raise RecordsDeleted(
                f"offsets {offset} to {starts[number] - 1} of partition {number} of topic {topic!r} were deleted",
                hint=f"read from offset {starts[number]} on",
                members={"partition": number, "start": starts[number]},
            )
    ranges = {number: (offset, min(ends[number], offset + limit)) for number, offset in begin.items()}
    next_offsets = {number: max(offset, end) for number, (offset, end) in ranges.items()}
    records: list[RecordDocument] = []
    size = 0
    read_ends: dict[int, int] = {}
    for message in read(cluster, topic, ranges):
        size += len(message)
        if len(records) >= limit or (size > bytes_max and records):
            next_offsets = {number: read_ends.get(number, offset) for number, offset in begin.items()}
            break
        records.append(_record(message))
        read_ends[message.partition() or 0] = (message.offset() or 0) + 1
    at_end = all(next_offsets[number] >= ends[number] for number in begin)
    token = PositionToken.of({topic: TopicPosition(topic_id, next_offsets)}).encode()
    return RecordPage(records, RecordCursor(topic_id, next_offsets), at_end, token)


def _record(message: Message) -> RecordDocument:
    key, key_base64 = _text(message.key())
    raw = message.value()
    value: msgspec.Raw | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    try:
        value = None if raw is None else _raw_json(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value_base64 = base64.b64encode(raw or b"").decode()
    raw_headers: Any = message.headers() or ()
    headers = [_header(name, data) for name, data in raw_headers]
    return RecordDocument(
        message.partition() or 0,
        message.offset() or 0,
        time_json(message.timestamp()[1]),
        key,
        key_base64,
        value,
        value_base64,
        headers or UNSET,
    )


def _raw_json(value: bytes) -> msgspec.Raw:
    """Return the bytes unchanged. Raise unless they are valid JSON."""
    msgspec.json.decode(value)
    return _decode_raw(value)


def _header(name: str, data: object) -> HeaderDocument:
    return HeaderDocument(name, *_text(data if isinstance(data, bytes) else None))


def _text(data: bytes | str | None) -> tuple[str | UnsetType | None, str | UnsetType]:
    """Return UTF-8 bytes as a text, or other bytes in base64 as the second value."""
    if data is None or isinstance(data, str):
        return data, UNSET
    try:
        return data.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, base64.b64encode(data).decode()
