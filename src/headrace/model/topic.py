"""A topic of an app: a name in the log, the shape of its values, their key, and their time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from headrace.model.place import Place
from headrace.model.schema import Schema
from headrace.model.values import encode_record

__all__ = ["Topic"]


@dataclass(frozen=True, slots=True)
class Topic:
    """``kind`` is ``events`` for facts, all of which count, or ``table`` for rows, of which the last per key counts."""

    name: str
    schema: Schema | None
    """None where a flow's output gives it."""
    key: tuple[str, ...]
    time: str | None = None
    late: timedelta = timedelta(0)
    kind: Literal["events", "table"] = "events"
    partitions: int | None = None
    """None leaves it to the setting ``topics.partitions``."""
    place: Place | None = field(default=None, compare=False)

    def encode(self, value: Any) -> tuple[bytes | None, bytes]:
        """Key and value of the record that says so; a topic without a key has none."""
        return encode_record(self, value)
