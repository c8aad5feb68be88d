"""A dead letter: an unchanged record, with its origin and the reason why it was rejected.

Headrace and Spring Kafka write dead letters, and each adds its own headers. The other headers are the record's own.

    __headrace.errors.*    exception, message, topic, partition, offset; all are text
    kafka_dlt-*            of Spring: original-topic (text), original-partition (4 bytes), original-offset (8 bytes),
                           exception-fqcn and exception-message (text)

Headers of an earlier replay (``__headrace.replay.*``) are not the record's own either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
from confluent_kafka import Message

__all__ = ["ERRORS", "REPLAY", "Header", "Letter", "Origin", "RecordId", "own_headers"]

ERRORS = "__headrace.errors."
REPLAY = "__headrace.replay."
_SPRING = "kafka_dlt-"
_TEXT_CHARS_MAX = 2_000

Header = tuple[str, bytes | None]


class RecordId(msgspec.Struct, frozen=True, order=True):
    """The topic, partition and offset of a record in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Origin(msgspec.Struct, frozen=True):
    topic: str
    partition: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.topic, self.partition, self.offset) if part is not None)


@dataclass(frozen=True, slots=True)
class Letter:
    record_id: RecordId
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    """The record's own headers."""
    origin: Origin | None
    """None if the letter does not name its origin."""
    exception: str
    reason: str
    writer: Literal["headrace", "spring", ""]

    @property
    def id(self) -> bytes:
        """The id of the rejected record. If a killed follower wrote the letter twice, both letters have the same id.

        It includes key and value, because a topic that was deleted and created again reuses its offsets.
        """
        origin = self.origin
        if origin is None or origin.partition is None or origin.offset is None:
            named: tuple[object, ...] = ("letter", *msgspec.structs.astuple(self.record_id))
        else:
            named = ("origin", origin.topic, origin.partition, origin.offset)
        encoded = msgspec.msgpack.encode([*named, self.key, self.value])
        return hashlib.sha256(encoded).hexdigest().encode()

    @property
    def size_bytes(self) -> int:
        own = sum(len(name) + len(data or b"") for name, data in self.headers)
        return len(self.key or b"") + len(self.value or b"") + own

    @classmethod
    def of(cls, message: Message) -> Letter:
        headers = _headers(message)
        names = {name for name, _ in headers}
        record_id = RecordId(message.topic() or "", message.partition() or 0, message.offset() or 0)
        writer: Literal["headrace", "spring", ""] = ""
        origin, exception, reason = None, "", ""
        if any(name.startswith(ERRORS) for name in names):
            writer = "headrace"
            last = dict(headers)
            origin = _origin(*(last.get(f"{ERRORS}{name}") for name in ("topic", "partition", "offset")))
            exception, reason = _text(last.get(f"{ERRORS}exception")), _text(last.get(f"{ERRORS}message"))
        elif any(name.startswith(_SPRING) for name in names):
            writer = "spring"
            # A letter that fails again gets more headers at the end. The first headers name its origin.
            first, last = dict(reversed(headers)), dict(headers)
            origin = _spring_origin(first)
            exception = _text(
                last.get(f"{_SPRING}exception-cause-fqcn") or last.get(f"{_SPRING}exception-fqcn")
            )
            reason = _text(last.get(f"{_SPRING}exception-message"))
        return cls(
            *(record_id, message.timestamp()[1], message.key(), message.value(), own_headers(message)),
            *(origin, exception, reason, writer),
        )


def own_headers(message: Message) -> tuple[Header, ...]:
    """Return the headers of the record's producer, without headers of a dead letter or of an earlier replay."""
    return tuple(
        header for header in _headers(message) if not header[0].startswith((ERRORS, REPLAY, _SPRING))
    )


def _headers(message: Message) -> list[Header]:
    headers: Iterable[tuple[str, object]] = message.headers() or ()  # type: ignore[assignment]
    return [(name, data if isinstance(data, bytes) else None) for name, data in headers]


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")[:_TEXT_CHARS_MAX]


def _origin(topic: bytes | None, partition: bytes | None, offset: bytes | None) -> Origin | None:
    if not topic:
        return None
    return Origin(_text(topic), _number(partition), _number(offset))


def _number(data: bytes | None) -> int | None:
    return int(data) if data is not None and data.isdigit() and len(data) < 20 else None


def _spring_origin(headers: dict[str, bytes | None]) -> Origin | None:
    topic = headers.get(f"{_SPRING}original-topic")
    if not topic:
        return None
    numbers = []
    for name, size in (("partition", 4), ("offset", 8)):
        data = headers.get(f"{_SPRING}original-{name}")
        numbers.append(int.from_bytes(data, signed=True) if data is not None and len(data) == size else None)
    known = [None if number is None or number < 0 else number for number in numbers]
    return Origin(_text(topic), *known)
