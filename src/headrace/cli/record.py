"""The record that output formats, filters and JSON output use, whichever client read it from the log."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import Consumer

__all__ = ["Header", "Record", "as_json", "next_batch", "record_of"]

Header = tuple[str, bytes | None]

# confluent-kafka's timestamp types are 0 (none), 1 (producer) and 2 (broker). The protocol's are -1, 0 and 1.
_TYPE_SHIFT = -1


@dataclass(slots=True)
class Record:
    topic: str
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    """Milliseconds since 1970, or -1 for no timestamp."""
    timestamp_type: int = -1
    """0 if the producer set the timestamp, 1 if the broker did, -1 for no timestamp."""
    key: bytes | None = None
    value: bytes | None = None
    headers: list[Header] = field(default_factory=list)
    leader_epoch: int = -1
    log_start: int = -1
    high_watermark: int = -1


def as_json(record: Record, *, meta_only: bool = False) -> dict[str, object]:
    """Convert the record to JSON with rpk's field names. The value of a tombstone is null; an empty value is ""."""
    out: dict[str, object] = {"topic": record.topic}
    _put_bytes(out, "key", record.key)
    if meta_only:
        out["value_size"] = None if record.value is None else len(record.value)
    else:
        _put_bytes(out, "value", record.value)
    if record.headers:
        headers = []
        for name, value in record.headers:
            header: dict[str, object] = {"key": name}
            _put_bytes(header, "value", value)
            headers.append(header)
        out["headers"] = headers
    out["timestamp"] = record.timestamp
    out["partition"] = record.partition
    out["offset"] = record.offset
    return out


def _put_bytes(target: dict[str, object], name: str, data: bytes | None) -> None:
    """Store UTF-8 as a string. Store any other bytes as base64 under NAME_base64, so that no byte is lost."""
    if data is None:
        target[name] = None
        return
    try:
        target[name] = data.decode()
    except UnicodeDecodeError:
        target[f"{name}_base64"] = base64.b64encode(data).decode()


def next_batch(consumer: Consumer, count_max: int, timeout_s: float) -> list[Any]:
    """Wait for the first message, then return it with the messages that have arrived. Do not wait for a full batch."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(count_max - 1, 0)]


def record_of(message: Any) -> Record:
    timestamp_type, timestamp_ms = message.timestamp()
    epoch = message.leader_epoch()
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset() if message.offset() is not None else -1,
        timestamp=timestamp_ms if timestamp_type else -1,
        timestamp_type=timestamp_type + _TYPE_SHIFT,
        key=message.key(),
        value=message.value(),
        headers=message.headers() or [],
        leader_epoch=-1 if epoch is None else epoch,
    )
