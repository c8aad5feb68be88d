"""A mark states that a dead letter was written back.

Marks are records in the topic ``headrace.replays.<app>``. The transaction that writes the letter back also writes its
mark. The key of a mark is the letter's id, and the last mark of a key is current. ``Marks`` is an index of that topic.
If a letter has two marks, the index stores the mark with the higher offset, in whatever order the marks are added.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.topic_index import IndexLayout, TopicIndex
from headrace.ops.dead.letter import Origin, RecordId

__all__ = ["Mark", "Marks", "marks_path", "marks_topic"]


class Mark(msgspec.Struct, frozen=True):
    letter: RecordId
    origin: Origin
    to: RecordId
    """The record that was written back."""
    at_ms: int
    job: str
    """The replay that wrote the letter. When this replay resumes after an error, it does not write the letter again."""


def marks_topic(app: str) -> str:
    return f"headrace.replays.{app}"


_LAYOUT = IndexLayout(
    version=1,
    table="marks",
    create="""
CREATE TABLE marks (id BLOB PRIMARY KEY, at INTEGER NOT NULL, dead TEXT NOT NULL, mark BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX by_topic ON marks (dead);
""",
    insert="""
INSERT INTO marks VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, dead = excluded.dead, mark = excluded.mark
WHERE excluded.at > marks.at
""",
)
_decoder = msgspec.json.Decoder(Mark)


def marks_path(data: Path, app: str) -> Path:
    return data / "serve" / f"{app}-replays.db"


class Marks:
    """An index of the marks. It is thread-safe. Without a path the index is in memory and starts empty."""

    def __init__(self, path: Path | None, cluster: Cluster, app: str) -> None:
        self._cluster = cluster
        self.topic = marks_topic(app)
        self._index = TopicIndex(cluster, self.topic, path, _LAYOUT, _row)

    def close(self) -> None:
        self._index.close()

    def ensure_topic(self) -> None:
        """Create the topic unless it exists. It retains marks forever: without its mark, a letter could be written back
        twice.
        """
        configs = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
        self._cluster.ensure_topic(self.topic, 1, configs)

    def catch_up(self, *, is_owner: bool = False) -> None:
        """Read to the end of the topic. ``is_owner`` means that no other process can write to it now."""
        self._index.catch_up(is_owner=is_owner)

    def add(self, marks: Iterable[tuple[bytes, int, Mark]], end: int) -> None:
        """Add marks with their offsets. All marks before offset ``end`` are then known."""
        self._index.add(
            ((key, at, mark.letter.topic, msgspec.json.encode(mark)) for key, at, mark in marks), end
        )

    def find(self, key: bytes) -> Mark | None:
        rows = self._index.query("SELECT mark FROM marks WHERE id = ?", key)
        return _decoder.decode(rows[0][0]) if rows else None

    def counts(self) -> dict[str, int]:
        """Return how many letters of each dead-letter topic were written back."""
        return dict(self._index.query("SELECT dead, count(*) FROM marks GROUP BY dead"))


def _row(message: Message) -> tuple[Any, ...] | None:
    """Return None if the record is not a mark."""
    value = message.value() or b""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return message.key() or b"", message.offset() or 0, _decoder.decode(value).letter.topic, value
    return None
