"""What tests write and read: rows, deletions, late records and dead letters, with Python values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.codec.codec import codec_of
from headrace.model.declarations import Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.model.rejection import Reason

__all__ = [
    "DeadRecord",
    "Deleted",
    "DerivedRows",
    "InvalidSample",
    "LateRecord",
    "Reason",
    "decode_row",
    "encode_sample",
    "time_of",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InvalidSample(HeadraceError):
    """A test passed a row that its topic cannot have."""

    code = "HR-TEST-INPUT"


@dataclass(frozen=True)
class Deleted:
    """The record that deletes a key of a table: it has only the fields of the key."""

    key: Mapping[str, Any]


@dataclass(frozen=True)
class LateRecord:
    """An event that was too far behind an earlier event of its partition. The flow's function does not get it."""

    topic: str
    row: dict[str, Any]
    newest: datetime
    """The newest event time before it."""


@dataclass(frozen=True)
class DeadRecord:
    """A record that a flow or a view rejected."""

    topic: str
    """The topic of the rejected record."""
    reason: Reason
    message: str
    """Details of the reason, for people."""
    value: bytes | None
    key: bytes | None = None


@dataclass
class DerivedRows:
    """What a flow derives from the rows of a test."""

    rows: list[dict[str, Any] | Deleted] = field(default_factory=list)
    """The rows that the flow writes, in the order in which it writes them."""
    late: list[LateRecord] = field(default_factory=list)
    dead: list[DeadRecord] = field(default_factory=list)
    key: tuple[str, ...] = ()
    """The key of the topic that the flow writes."""

    @property
    def current(self) -> list[dict[str, Any]]:
        """The last row of each key, as a view of the topic has them. A deletion removes its key."""
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.rows:
            fields = row.key if isinstance(row, Deleted) else row
            key = tuple(repr(fields[name]) for name in self.key)
            rows.pop(key, None)
            if not isinstance(row, Deleted):
                rows[key] = row
        return list(rows.values())


def encode_sample(topic: Topic, row: Any) -> tuple[bytes | None, bytes | None]:
    """Return key and value of the record. ``topic`` must have its schema.

    ``row`` is a dataclass, a mapping, a ``Deleted``, or the value of a record as bytes. Bytes need not fit the schema.
    """
    assert topic.schema is not None
    if isinstance(row, bytes):
        return None, row
    codec = codec_of(topic.schema)
    try:
        if isinstance(row, Deleted):
            return codec.key(topic.key).encode(row.key), None
        return (codec.key(topic.key).encode(row) if topic.key else None), codec.encode(row)
    except ValueDoesNotFit as error:
        raise InvalidSample(
            f"a row for topic {topic.name!r} does not fit its schema: {error.message}",
            detail=f"{row!r:.500}",
            hint="correct the row; to test a record that does not fit, pass its value as bytes",
        ) from error


def decode_row(topic: Topic, key: bytes | None, value: bytes | None) -> dict[str, Any] | Deleted:
    """Return the row of a record with Python values. ``topic`` must have its schema. Raises ``ValueDoesNotFit``."""
    assert topic.schema is not None
    codec = codec_of(topic.schema)
    if value is None:
        return Deleted(codec.key(topic.key).decode(key or b""))
    return codec.decode(value if topic.upcast is None else topic.upcast.apply(value))


def time_of(at_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at_us)
