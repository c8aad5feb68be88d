"""Hand-written workers. Each worker is a process that can die before it commits its position.

    python -m examples.workers.by_hand ADDRESS-OF-THE-LOG WAY STORE DIE-AFTER

The workers count parcels per depot. WAY is one of:

    after        in SQLite; the offset is committed to the group when a batch is done
    together     in SQLite; the offset is in the same transaction as the counts
    plain        in Redis, by HINCRBY; the offset is committed to the group when a batch is done
    offset       in Redis; each count has the offset of the last parcel that changed it
    latest       in SQLite; stores the last number of pieces of each item instead of counts

STORE is a SQLite file or the address of a Redis server. After DIE-AFTER records the worker kills itself (-1: never).
With 0, it reads the first record and then stops until it gets SIGCONT, like a process on a paused machine. At the end
of the log, the worker exits and prints how many records it has read.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from typing import Any, Protocol

from confluent_kafka import Message, TopicPartition

from examples.workers import parcels, stock
from headrace.client.cluster import Cluster
from headrace.client.records import read

__all__ = ["main"]

# Increments a count and stores its offset, unless the parcel is already counted.
_COUNT_ONCE = """
local at = tonumber(redis.call('HGET', KEYS[1] .. ':at', ARGV[1]) or '-1')
if tonumber(ARGV[2]) > at then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('HSET', KEYS[1] .. ':at', ARGV[1], ARGV[2])
end
"""


class Way(Protocol):
    def position(self) -> int: ...

    def process(self, record: Message) -> None: ...

    def save_position(self, position: int) -> None: ...


class Group:
    """Commits the position to the log, as the offset of a consumer group."""

    def __init__(self, cluster: Cluster, topic: str, name: str) -> None:
        self._topic = topic
        self._consumer = cluster.consumer({"group.id": f"workers-{name}"})

    def position(self) -> int:
        (committed,) = self._consumer.committed([TopicPartition(self._topic, 0)], 30)
        return max(0, int(committed.offset))

    def save_position(self, position: int) -> None:
        committed = TopicPartition(self._topic, 0, position)
        self._consumer.commit(offsets=[committed], asynchronous=False)


class After(Group):
    def __init__(self, cluster: Cluster, store: str) -> None:
        super().__init__(cluster, parcels.name, "after")
        self._store = _open_store(store)

    def process(self, record: Message) -> None:
        with self._store:
            _add(self._store, record)


class Together:
    def __init__(self, cluster: Cluster, store: str) -> None:
        self._store = _open_store(store)

    def position(self) -> int:
        position_row = self._store.execute("SELECT pieces FROM counts WHERE depot = '_position'").fetchone()
        return int(position_row[0]) if position_row else 0

    def process(self, record: Message) -> None:
        with self._store:
            _add(self._store, record)
            _put(self._store, "_position", (record.offset() or 0) + 1)

    def save_position(self, position: int) -> None:
        """Does nothing: ``process`` stores the position with each record."""


class Plain(Group):
    def __init__(self, cluster: Cluster, store: str) -> None:
        import redis

        super().__init__(cluster, parcels.name, "plain")
        self._redis: Any = redis.Redis.from_url(store)

    def process(self, record: Message) -> None:
        self._redis.hincrby("workers:plain", _depot(record), 1)


class Offset(Group):
    def __init__(self, cluster: Cluster, store: str) -> None:
        import redis

        super().__init__(cluster, parcels.name, "offset")
        self._count_once: Any = redis.Redis.from_url(store).register_script(_COUNT_ONCE)

    def process(self, record: Message) -> None:
        self._count_once(keys=["workers:offset"], args=[_depot(record), record.offset()])


class Latest(Group):
    def __init__(self, cluster: Cluster, store: str) -> None:
        super().__init__(cluster, stock.name, "latest")
        self._store = _open_store(store)

    def process(self, record: Message) -> None:
        row = json.loads(record.value() or b"")
        with self._store:
            _put(self._store, row["item"], row["pieces"])


WAYS: dict[str, Any] = {
    "after": After,
    "together": Together,
    "plain": Plain,
    "offset": Offset,
    "latest": Latest,
}


def _open_store(path: str) -> sqlite3.Connection:
    store = sqlite3.connect(path)
    store.execute("CREATE TABLE IF NOT EXISTS counts (depot TEXT PRIMARY KEY, pieces INTEGER)")
    return store


def _depot(record: Message) -> str:
    depot: str = json.loads(record.value() or b"")["depot"]
    return depot


def _add(store: sqlite3.Connection, record: Message) -> None:
    store.execute(
        "INSERT INTO counts VALUES (?, 1) ON CONFLICT DO UPDATE SET pieces = pieces + 1", (_depot(record),)
    )


def _put(store: sqlite3.Connection, name: str, pieces: int) -> None:
    store.execute(
        "INSERT INTO counts VALUES (?, ?) ON CONFLICT DO UPDATE SET pieces = excluded.pieces", (name, pieces)
    )


def main(bootstrap: str, way: str, store: str, die_after: str) -> None:
    cluster = Cluster(bootstrap)
    worker: Way = WAYS[way](cluster, store)
    topic = stock.name if way == "latest" else parcels.name
    begin, end = worker.position(), cluster.ends(topic)[0]
    for seen, record in enumerate(read(cluster, topic, {0: (begin, end)}), start=1):
        if int(die_after) == 0 and seen == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        worker.process(record)
        if seen == int(die_after):
            print(seen, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    worker.save_position(end)
    print(end - begin, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
