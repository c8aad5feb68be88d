"""The committed records of a topic, read with an independent Kafka client."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Message

from faults.committed_records import committed
from faults.committed_records import committed_json as values

__all__ = ["committed", "headers", "last_values", "values"]


def last_values(bootstrap: str, topic: str) -> dict[str, Any]:
    """Return the last value of each key. A null value deletes the key."""
    rows: dict[str, Any] = {}
    for message in committed(bootstrap, topic):
        key = message.key().decode()
        if message.value() is None:
            rows.pop(key, None)
        else:
            rows[key] = json.loads(message.value())
    return rows


def headers(message: Message) -> dict[str, str]:
    return {
        name.removeprefix("__headrace.errors."): value.decode() for name, value in message.headers() or []
    }
