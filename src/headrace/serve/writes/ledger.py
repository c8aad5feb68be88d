"""Which requests were carried out, and what was answered: a copy of a topic, in a file that can be thrown away.

Topic ``headrace.requests.<app>`` has one record per request that was carried out, in the transaction of the records
that it wrote: the key is the request's, the value what was written and a hash of what was asked for. The copy is a
SQLite file with the offset up to which it has been read, in one transaction with what was read. It may be behind the
topic, after a crash, or be gone: it reads on. Several processes may share it: what they write in it is in the topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.copy_file import open_copy
from headrace.client.reading import read
from headrace.serve.writes.written import Written

__all__ = ["Carried", "Ledger", "topic_of"]

_FORMAT = 1
_TABLES = """
CREATE TABLE requests (id BLOB PRIMARY KEY, at_ms INTEGER NOT NULL, carried BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX by_time ON requests (at_ms);
CREATE TABLE place (only INTEGER PRIMARY KEY CHECK (only = 0), topic_id TEXT NOT NULL, next INTEGER NOT NULL);
"""


class Carried(msgspec.Struct, frozen=True):
    """The value of a record."""

    fingerprint: str
    """Of what was asked for."""
    at_ms: int
    written: Written


_decoder = msgspec.json.Decoder(Carried)


def topic_of(app: str) -> str:
    return f"headrace.requests.{app}"


class Ledger:
    """For one thread."""

    def __init__(self, path: Path, cluster: Cluster, app: str, keep_ms: int) -> None:
        self._cluster = cluster
        self.topic = topic_of(app)
        self._keep_ms = keep_ms
        self._database = open_copy(path, _TABLES, _FORMAT)

    def close(self) -> None:
        self._database.close()

    def ensure_topic(self) -> None:
        configs = {"cleanup.policy": "compact,delete", "retention.ms": str(self._keep_ms)}
        self._cluster.ensure_topic(self.topic, 1, configs)

    def catch_up(self, now_ms: int) -> None:
        """Read on to the end of the topic. Whoever calls has seen to it that nobody else writes there."""
        topic_id = self._cluster.expect_topic(self.topic).id
        # What was committed a moment ago may not be visible yet: it is waited for, up to what was written at all.
        start, end = self._cluster.starts(self.topic)[0], self._cluster.ends(self.topic, committed=False)[0]
        found = self._database.execute("SELECT topic_id, next FROM place").fetchone()
        if found is None or found[0] != topic_id or found[1] > end:
            with self._changing():
                self._database.execute("DELETE FROM requests")
                self._database.execute("REPLACE INTO place VALUES (0, ?, ?)", (topic_id, start))
            begin = start
        else:
            begin = max(start, found[1])
        carried = (
            (message.key() or b"", _decoder.decode(message.value() or b""))
            for message in read(self._cluster, self.topic, {0: (begin, end)})
            if message.value() is not None
        )
        self.note(carried, end)
        with self._changing():
            self._database.execute("DELETE FROM requests WHERE at_ms < ?", (now_ms - self._keep_ms,))

    def note(self, carried: Iterable[tuple[bytes, Carried]], end: int) -> None:
        """What is in the topic before ``end``, besides what is noted already."""
        with self._changing():
            self._database.executemany(
                "REPLACE INTO requests VALUES (?, ?, ?)",
                ((key, one.at_ms, msgspec.json.encode(one)) for key, one in carried),
            )
            self._database.execute("UPDATE place SET next = max(next, ?)", (end,))

    def find(self, key: bytes) -> Carried | None:
        found = self._database.execute("SELECT carried FROM requests WHERE id = ?", (key,)).fetchone()
        return None if found is None else _decoder.decode(found[0])

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
