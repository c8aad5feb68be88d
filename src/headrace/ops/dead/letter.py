"""A record of a dead-letter topic: an unchanged record, with its origin and the reason why it was rejected.

Headrace and Spring Kafka write dead letters, and each adds its own headers. The other headers are the record's own.

    __headrace.errors.*    see ``headrace.model.rejection``
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

from headrace.model.rejection import BUILD_HEADER, ERRORS, BuildRecord, Reason, generation_of, parse_reason

__all__ = ["REPLAY", "Header", "Letter", "Origin", "RecordId", "build_record_of", "own_headers"]

REPLAY = "__headrace.replay."
_SPRING = "kafka_dlt-"
_TEXT_CHARS_MAX = 2_000
_DIGITS_MAX = 18
"""Every number of this length fits into 64 bits. Any client can write a letter."""

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
    reason: Reason
    message: str
    """Details of the reason, for people."""
    writer: Literal["headrace", "spring", ""]
    generation: int | None = None
    """The generation of the flow that rejected the record, or that wrote the view's topic; None if unknown."""
    topic_id: str = ""
    """The id of the origin's topic; empty if unknown."""

    @property
    def id(self) -> bytes:
        """The id of the rejected record: the same, whichever flow or view rejected it, and however often.

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
        origin, exception, message_text, reason = None, "", "", Reason.UNKNOWN
        last = dict(headers)
        if any(name.startswith(ERRORS) for name in names):
            writer = "headrace"
            fields = {
                name: last.get(f"{ERRORS}{name}") for name in ("reason", "exception", "message", "topic_id")
            }
            origin = _origin(*(last.get(f"{ERRORS}{name}") for name in ("topic", "partition", "offset")))
            exception, message_text = _text(fields["exception"]), _text(fields["message"])
            reason = parse_reason(_text(fields["reason"]), exception)
            return cls(
                *(record_id, message.timestamp()[1], message.key(), message.value(), own_headers(message)),
                *(origin, exception, reason, message_text, writer),
                generation_of(last),
                _text(fields["topic_id"]),
            )
        if any(name.startswith(_SPRING) for name in names):
            writer, reason = "spring", Reason.CONSUMER
            # A letter that fails again gets more headers at the end. The first headers name its origin.
            origin = _spring_origin(dict(reversed(headers)))
            exception = _text(
                last.get(f"{_SPRING}exception-cause-fqcn") or last.get(f"{_SPRING}exception-fqcn")
            )
            message_text = _text(last.get(f"{_SPRING}exception-message"))
        return cls(
            *(record_id, message.timestamp()[1], message.key(), message.value(), own_headers(message)),
            *(origin, exception, reason, message_text, writer),
        )


def build_record_of(message: Message) -> BuildRecord | None:
    """Return the build record that a follower wrote between the letters; None for a letter."""
    header = next((data for name, data in _headers(message) if name == BUILD_HEADER), None)
    return None if header is None or message.value() is not None else BuildRecord.parse(header)


def own_headers(message: Message) -> tuple[Header, ...]:
    """Return the headers of the record's producer, without headers of a dead letter or of an earlier replay."""
    return tuple(
        header
        for header in _headers(message)
        if not header[0].startswith((ERRORS, REPLAY, _SPRING)) and header[0] != BUILD_HEADER
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
    return int(data) if data is not None and data.isdigit() and len(data) <= _DIGITS_MAX else None


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
