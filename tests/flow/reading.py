"""What any Kafka reader sees of a topic: committed records, with a client and settings of its own."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Message

from bench.faults.committed import committed

__all__ = ["committed", "folded", "headers", "values"]


def values(bootstrap: str, topic: str) -> list[Any]:
    return [json.loads(one.value()) for one in committed(bootstrap, topic)]


def folded(bootstrap: str, topic: str) -> dict[str, Any]:
    """The last value of each key; a null value deletes."""
    rows: dict[str, Any] = {}
    for one in committed(bootstrap, topic):
        key = one.key().decode()
        if one.value() is None:
            rows.pop(key, None)
        else:
            rows[key] = json.loads(one.value())
    return rows


def headers(message: Message) -> dict[str, str]:
    return {
        name.removeprefix("__headrace.errors."): value.decode() for name, value in message.headers() or []
    }
