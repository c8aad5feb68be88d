"""Which letters were written back: a copy of the topic of marks, in a file that can be thrown away.

The copy is a SQLite file with the offset up to which it has been read, in one transaction with what was read. It may be
behind the topic, after a crash, or be gone: it reads on. Several processes may share it: what they write in it is in
the topic, and of two marks of one letter the one with the higher offset stays.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.copy_file import open_copy
from headrace.client.reading import read
from headrace.ops.dead.mark import Mark, marks_topic

__all__ = ["Marks", "marks_path"]

_AT_ONCE = 1_000
_FORMAT = 1
_TABLES = """
CREATE TABLE marks (id BLOB PRIMARY KEY, at INTEGER NOT NULL, dead TEXT NOT NULL, mark BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX by_topic ON marks (dead);
CREATE TABLE place (only INTEGER PRIMARY KEY CHECK (only = 0), topic_id TEXT NOT NULL, next INTEGER NOT NULL);
"""
_NOTE = """
INSERT INTO marks VALUES (?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, dead = excluded.dead, mark = excluded.mark
WHERE excluded.at > marks.at
"""
_decoder = msgspec.json.Decoder(Mark)


def marks_path(data: Path, app: str) -> Path:
    return data / "serve" / f"{app}-replays.db"


class Marks:
    """For any thread. Without a path, the copy is in memory and read anew each time."""

    def __init__(self, path: Path | None, cluster: Cluster, app: str) -> None:
        self._cluster = cluster
        self.topic = marks_topic(app)
        self._lock = threading.RLock()
        self._database = open_copy(path, _TABLES, _FORMAT)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def ensure_topic(self) -> None:
        """Marks are kept for good: without its mark, a letter could be written back again."""
        configs = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
        self._cluster.ensure_topic(self.topic, 1, configs)

    def catch_up(self, *, all_of_it: bool = False) -> None:
        """Read on. ``all_of_it`` is for whoever has seen to it that nobody else writes: what was committed a moment ago
        may not be visible yet, and is waited for, up to what was written at all.
        """
        with self._lock:
            topic = self._cluster.topic(self.topic)
            start = end = 0
            if topic is not None:
                start = self._cluster.starts(self.topic)[0]
                end = self._cluster.ends(self.topic, committed=not all_of_it)[0]
            topic_id = topic.id if topic else ""
            found = self._database.execute("SELECT topic_id, next FROM place").fetchone()
            # A log that was restored from a backup may end before what was read.
            if found is None or found[0] != topic_id or (all_of_it and found[1] > end):
                with self._changing():
                    self._database.execute("DELETE FROM marks")
                    self._database.execute("REPLACE INTO place VALUES (0, ?, ?)", (topic_id, start))
                begin = start
            else:
                begin = max(start, found[1])
            if begin < end:
                self._note_from(begin, end)

    def _note_from(self, begin: int, end: int) -> None:
        """In pieces: nobody else who has the file open waits for the log."""
        held: list[tuple[bytes, int, Mark]] = []
        for one in self._read(begin, end):
            held.append(one)
            if len(held) >= _AT_ONCE:
                self.note(held, held[-1][1] + 1)
                held = []
        self.note(held, end)

    def _read(self, begin: int, end: int) -> Iterator[tuple[bytes, int, Mark]]:
        for message in read(self._cluster, self.topic, {0: (begin, end)}):
            # What is no mark is not ours.
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                mark = _decoder.decode(message.value() or b"")
                yield message.key() or b"", message.offset() or 0, mark

    def note(self, marks: Iterable[tuple[bytes, int, Mark]], end: int) -> None:
        """What is in the topic before ``end``, with its offsets, besides what is noted already."""
        with self._lock, self._changing():
            told = ((key, at, one.letter.topic, msgspec.json.encode(one)) for key, at, one in marks)
            self._database.executemany(_NOTE, told)
            self._database.execute("UPDATE place SET next = max(next, ?)", (end,))

    def find(self, key: bytes) -> Mark | None:
        with self._lock:
            found = self._database.execute("SELECT mark FROM marks WHERE id = ?", (key,)).fetchone()
        return None if found is None else _decoder.decode(found[0])

    def counts(self) -> dict[str, int]:
        """By the topic of dead letters, how many of its letters were written back."""
        with self._lock:
            return dict(self._database.execute("SELECT dead, count(*) FROM marks GROUP BY dead").fetchall())

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
