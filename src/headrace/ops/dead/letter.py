"""A dead letter: a record as it came, where it came from, and why it was not taken.

Two writers are understood, by the headers that they add. What is left without them is the record's own.

    __headrace.errors.*    exception, message, topic, partition, offset; all texts
    kafka_dlt-*            Spring's: original-topic a text, original-partition 4 bytes, original-offset 8,
                           exception-fqcn and exception-message texts

Headers of an earlier replay (``__headrace.replay.*``) are no more the record's own than these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
from confluent_kafka import Message

__all__ = ["ERRORS", "REPLAY", "Header", "Letter", "Origin", "Place", "own_headers"]

ERRORS = "__headrace.errors."
REPLAY = "__headrace.replay."
_SPRING = "kafka_dlt-"
_TEXT_CHARS_MAX = 2_000

Header = tuple[str, bytes | None]


class Place(msgspec.Struct, frozen=True, order=True):
    """Of a record in the log."""

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
        return "/".join(str(one) for one in (self.topic, self.partition, self.offset) if one is not None)


@dataclass(frozen=True, slots=True)
class Letter:
    place: Place
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    """The record's own."""
    origin: Origin | None
    """None where nobody says."""
    exception: str
    reason: str
    writer: Literal["headrace", "spring", ""]

    @property
    def id(self) -> bytes:
        """Of the record that it is about: a follower that was killed may write the letter again, and that is the same.

        The bytes are a part of it, since a topic that was made anew has the same offsets again.
        """
        origin = self.origin
        if origin is None or origin.partition is None or origin.offset is None:
            named: tuple[object, ...] = ("letter", *msgspec.structs.astuple(self.place))
        else:
            named = ("origin", origin.topic, origin.partition, origin.offset)
        told = msgspec.msgpack.encode([*named, self.key, self.value])
        return hashlib.sha256(told).hexdigest().encode()

    @property
    def size_bytes(self) -> int:
        own = sum(len(name) + len(data or b"") for name, data in self.headers)
        return len(self.key or b"") + len(self.value or b"") + own

    @classmethod
    def of(cls, message: Message) -> Letter:
        headers = _headers(message)
        named = {name for name, _ in headers}
        place = Place(message.topic() or "", message.partition() or 0, message.offset() or 0)
        writer: Literal["headrace", "spring", ""] = ""
        origin, exception, reason = None, "", ""
        if any(name.startswith(ERRORS) for name in named):
            writer = "headrace"
            last = dict(headers)
            origin = _origin(*(last.get(f"{ERRORS}{one}") for one in ("topic", "partition", "offset")))
            exception, reason = _text(last.get(f"{ERRORS}exception")), _text(last.get(f"{ERRORS}message"))
        elif any(name.startswith(_SPRING) for name in named):
            writer = "spring"
            # What a letter went through after it was one is added behind: the first says where it began.
            first, last = dict(reversed(headers)), dict(headers)
            origin = _spring_origin(first)
            exception = _text(
                last.get(f"{_SPRING}exception-cause-fqcn") or last.get(f"{_SPRING}exception-fqcn")
            )
            reason = _text(last.get(f"{_SPRING}exception-message"))
        return cls(
            *(place, message.timestamp()[1], message.key(), message.value(), own_headers(message)),
            *(origin, exception, reason, writer),
        )


def own_headers(message: Message) -> tuple[Header, ...]:
    """Those that whoever wrote the record gave it: none of a letter's, and none of an earlier replay's."""
    return tuple(one for one in _headers(message) if not one[0].startswith((ERRORS, REPLAY, _SPRING)))


def _headers(message: Message) -> list[Header]:
    given: Iterable[tuple[str, object]] = message.headers() or ()  # type: ignore[assignment]
    return [(name, data if isinstance(data, bytes) else None) for name, data in given]


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
    known = [None if one is None or one < 0 else one for one in numbers]
    return Origin(_text(topic), *known)
