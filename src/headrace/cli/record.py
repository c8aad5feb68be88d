"""A record as formats, filters and JSON see it, whichever client it came through."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

__all__ = ["Header", "Record", "as_json"]

Header = tuple[str, bytes | None]


@dataclass(slots=True)
class Record:
    topic: str
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    """Milliseconds since 1970, or -1 for none."""
    timestamp_type: int = -1
    """0: set by whoever produced it, 1: by the broker, -1: none."""
    key: bytes | None = None
    value: bytes | None = None
    headers: list[Header] = field(default_factory=list)
    leader_epoch: int = -1
    log_start: int = -1
    high_watermark: int = -1


def _put(target: dict[str, object], name: str, text: bytes | None) -> None:
    """UTF-8 as it is; anything else as base64 under another name, so that no byte is lost in silence."""
    if text is None:
        target[name] = None
        return
    try:
        target[name] = text.decode()
    except UnicodeDecodeError:
        target[f"{name}_base64"] = base64.b64encode(text).decode()


def as_json(record: Record, *, meta_only: bool = False) -> dict[str, object]:
    """rpk's field names; a tombstone's value is null, which is not the same as an empty one."""
    out: dict[str, object] = {"topic": record.topic}
    _put(out, "key", record.key)
    if meta_only:
        out["value_size"] = None if record.value is None else len(record.value)
    else:
        _put(out, "value", record.value)
    if record.headers:
        headers = []
        for name, value in record.headers:
            header: dict[str, object] = {"key": name}
            _put(header, "value", value)
            headers.append(header)
        out["headers"] = headers
    out["timestamp"] = record.timestamp
    out["partition"] = record.partition
    out["offset"] = record.offset
    return out
