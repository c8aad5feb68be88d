"""A page of a topic's records, from some offsets on."""

from __future__ import annotations

import base64
import binascii
import contextlib
from typing import Any

import msgspec
from confluent_kafka import IsolationLevel, Message
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.serve.errors import CursorUnfit, RecordsGone, RequestUnfit
from headrace.serve.position_json import time_json
from headrace.serve.token import Reach, Token

__all__ = ["RecordCursor", "RecordPage", "offsets_at", "page_of"]

_CHARS_MAX = 16_000
_decode = msgspec.json.Decoder(msgspec.Raw).decode


class RecordCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a page begins; of the topic as it was."""

    topic_id: str
    offsets: dict[int, int]

    @classmethod
    def told(cls, text: str) -> RecordCursor:
        if len(text) <= _CHARS_MAX:
            with contextlib.suppress(binascii.Error, msgspec.DecodeError, ValueError, RecursionError):
                padded = text + "=" * (-len(text) % 4)
                return _decoder.decode(base64.b64decode(padded, b"-_", validate=True))
        raise CursorUnfit("cursor is not one of a topic", hint="follow the link named next, as it is")

    def tell(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).rstrip(b"=").decode()


_decoder = msgspec.msgpack.Decoder(RecordCursor)


class RecordPage(msgspec.Struct, frozen=True):
    records: list[dict[str, Any]]
    next: RecordCursor
    at_end: bool
    """Whether nothing came behind it, when it was read."""
    token: str
    """What was read, for ``after``."""


def offsets_at(cluster: Cluster, topic: str, time_ms: int) -> dict[int, int]:
    """The first record of each partition that is not older."""
    ends = cluster.ends(topic)
    # Times before 1970 are not asked for: to the log, negative ones are names of places, or mean nothing.
    spec = OffsetSpec.for_timestamp(max(0, time_ms))
    found = cluster.offsets_of(topic, ends, spec, IsolationLevel.READ_COMMITTED)
    return {number: found[number] if found[number] >= 0 else end for number, end in ends.items()}


def page_of(
    cluster: Cluster, topic: str, topic_id: str, begin: dict[int, int], limit: int, bytes_max: int
) -> RecordPage:
    """``begin`` has the partitions that are read; a log that does not have them any more is told of."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    for number, at in begin.items():
        if number not in ends or at < 0 or at > max(ends[number], starts[number]):
            known = f"it ends at {ends[number]}" if number in ends else f"there are {len(ends)} partitions"
            raise RequestUnfit(f"partition {number} of topic {topic!r} has no offset {at}: {known}")
        if at < starts[number]:
            raise RecordsGone(
                f"offsets {at} to {starts[number] - 1} of partition {number} of topic {topic!r} were deleted",
                hint=f"read from offset {starts[number]} on",
                members={"partition": number, "start": starts[number]},
            )
    ranges = {number: (at, min(ends[number], at + limit)) for number, at in begin.items()}
    following = {number: max(at, end) for number, (at, end) in ranges.items()}
    records: list[dict[str, Any]] = []
    size = 0
    seen: dict[int, int] = {}
    for message in read(cluster, topic, ranges):
        size += len(message)
        if len(records) >= limit or (size > bytes_max and records):
            following = {number: seen.get(number, at) for number, at in begin.items()}
            break
        records.append(_record(message))
        seen[message.partition() or 0] = (message.offset() or 0) + 1
    at_end = all(following[number] >= ends[number] for number in begin)
    token = Token.of({topic: Reach(topic_id, following)}).tell()
    return RecordPage(records, RecordCursor(topic_id, following), at_end, token)


def _record(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {
        "partition": message.partition(),
        "offset": message.offset(),
        "time": time_json(message.timestamp()[1]),
    }
    told |= _text("key", message.key())
    value = message.value()
    try:
        told["value"] = None if value is None else _checked(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told["value_base64"] = base64.b64encode(value or b"").decode()
    given: Any = message.headers() or ()
    headers = [_header(name, data) for name, data in given]
    return {**told, "headers": headers} if headers else told


def _checked(value: bytes) -> msgspec.Raw:
    """JSON, as it is; raises for what is none."""
    msgspec.json.decode(value)
    return _decode(value)


def _header(name: str, data: object) -> dict[str, Any]:
    return {"name": name, **_text("value", data if isinstance(data, bytes) else None)}


def _text(name: str, data: bytes | str | None) -> dict[str, Any]:
    """Text as it is; other bytes in base64, under another name."""
    if data is None or isinstance(data, str):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
