"""Conversations about a topic's records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.model.texts import bytes_from, time_from
from headrace.remote.errors import AnswerUnfit
from headrace.remote.exchange import Reply, Request, Steps, json_of
from headrace.remote.plain import key_text
from headrace.remote.position import Position
from headrace.remote.reading_as import Read
from headrace.remote.session import Session, expect_ours, path_of, quoted

__all__ = ["Record", "RecordPage", "records_page"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Record(Generic[V]):
    partition: int
    offset: int
    time: datetime
    """When the log received it."""
    key: str | bytes | None
    """Bytes if it is no text."""
    value: V | None
    """None for a deletion."""
    headers: list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class RecordPage(Generic[V]):
    records: list[Record[V]]
    position: Position
    at_end: bool
    """Whether there was nothing behind it then."""
    next: str


class _Header(msgspec.Struct, frozen=True):
    name: str
    value: str | None = None
    value_base64: str | None = None


class _Record(msgspec.Struct, frozen=True):
    partition: int
    offset: int
    time: str
    key: str | None = None
    key_base64: str | None = None
    value: msgspec.Raw = msgspec.Raw(b"null")
    value_base64: str | None = None
    headers: list[_Header] = []


class _Records(msgspec.Struct, frozen=True):
    position: Position
    records: list[_Record]
    at_end: bool
    next: str


def records_page(
    session: Session,
    topic: str,
    read: Read[V],
    following: str | None,
    *,
    partition: int | None = None,
    offset: int | None = None,
    time: datetime | None = None,
    limit: int = 1_000,
) -> Steps:
    path = f"/v1/topics/{quoted(topic)}/records"
    query = {
        "partition": partition,
        "offset": offset,
        "time": None if time is None else key_text(time),
        "limit": limit,
    }
    asked = path_of(path, query) if following is None else expect_ours(following)
    reply: Reply = yield from session.ask(Request("GET", asked))
    told: _Records = json_of(reply, _Records)
    if not told.records and not told.at_end and told.next == following:
        raise AnswerUnfit(f"the server's link leads to the same page again: {told.next[:100]!r}")
    records = [_record(one, topic, read) for one in told.records]
    return RecordPage(records, told.position, told.at_end, told.next)


def _record(told: _Record, topic: str, read: Read[V]) -> Record[V]:
    place = f"offset {told.offset} of partition {told.partition} of topic {topic!r}"
    if told.value_base64 is not None:
        raise AnswerUnfit(
            f"the value at {place} is no JSON",
            hint=f"read it with a client of Kafka; the next is at partition={told.partition}, offset={told.offset + 1}",
        )
    try:
        return Record(
            told.partition,
            told.offset,
            time_from(told.time),
            told.key if told.key_base64 is None else bytes_from(told.key_base64),
            None if bytes(told.value) == b"null" else read.json(bytes(told.value)),
            [
                (one.name, one.value if one.value_base64 is None else bytes_from(one.value_base64))
                for one in told.headers
            ],
        )
    except ValueDoesNotFit as error:
        raise AnswerUnfit(f"what came for {place} is no record: {error.message}") from None
