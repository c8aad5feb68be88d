"""Workers as people write them, each a process that may die before it has said how far it is.

    python -m examples.workers.by_hand ADDRESS-OF-THE-LOG WAY PLACE DIE-AFTER

They count parcels per depot. WAY says how:

    after        in SQLite; the offset is committed to the group when a batch is done
    together     in SQLite; the offset is in the same transaction as the counts
    plain        in Redis, by HINCRBY; the offset is committed to the group when a batch is done
    offset       in Redis; with each count the offset of the parcel that it was last changed by
    latest       no counts: the last number of pieces of each item, in SQLite

PLACE is a SQLite file or the address of a Redis. After DIE-AFTER records it kills itself (-1: never); with 0 it stops
with the first record in hand, as a process does that waits for its memory or its machine, until somebody wakes it. At
the end of the log it ends, and prints how many records it has seen.
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
from headrace.client.reading import read

__all__ = ["main"]

# Of a count that has the offset beside it: nothing happens for a parcel that is in it already.
_ONCE = """
local at = tonumber(redis.call('HGET', KEYS[1] .. ':at', ARGV[1]) or '-1')
if tonumber(ARGV[2]) > at then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('HSET', KEYS[1] .. ':at', ARGV[1], ARGV[2])
end
"""


class Way(Protocol):
    def position(self) -> int: ...

    def take(self, record: Message) -> None: ...

    def done(self, position: int) -> None: ...


class Group:
    """Where the log itself is told how far a worker is."""

    def __init__(self, cluster: Cluster, topic: str, name: str) -> None:
        self._topic = topic
        self._consumer = cluster.consumer({"group.id": f"workers-{name}"})

    def position(self) -> int:
        (place,) = self._consumer.committed([TopicPartition(self._topic, 0)], 30)
        return max(0, int(place.offset))

    def done(self, position: int) -> None:
        place = TopicPartition(self._topic, 0, position)
        self._consumer.commit(offsets=[place], asynchronous=False)


class After(Group):
    def __init__(self, cluster: Cluster, place: str) -> None:
        super().__init__(cluster, parcels.name, "after")
        self._store = _opened(place)

    def take(self, record: Message) -> None:
        with self._store:
            _add(self._store, record)


class Together:
    def __init__(self, cluster: Cluster, place: str) -> None:
        self._store = _opened(place)

    def position(self) -> int:
        found = self._store.execute("SELECT pieces FROM counts WHERE depot = '_position'").fetchone()
        return int(found[0]) if found else 0

    def take(self, record: Message) -> None:
        with self._store:
            _add(self._store, record)
            _put(self._store, "_position", (record.offset() or 0) + 1)

    def done(self, position: int) -> None:
        """It was said with each record."""


class Plain(Group):
    def __init__(self, cluster: Cluster, place: str) -> None:
        import redis

        super().__init__(cluster, parcels.name, "plain")
        self._redis: Any = redis.Redis.from_url(place)

    def take(self, record: Message) -> None:
        self._redis.hincrby("workers:plain", _depot(record), 1)


class Offset(Group):
    def __init__(self, cluster: Cluster, place: str) -> None:
        import redis

        super().__init__(cluster, parcels.name, "offset")
        self._once: Any = redis.Redis.from_url(place).register_script(_ONCE)

    def take(self, record: Message) -> None:
        self._once(keys=["workers:offset"], args=[_depot(record), record.offset()])


class Latest(Group):
    def __init__(self, cluster: Cluster, place: str) -> None:
        super().__init__(cluster, stock.name, "latest")
        self._store = _opened(place)

    def take(self, record: Message) -> None:
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


def _opened(place: str) -> sqlite3.Connection:
    store = sqlite3.connect(place)
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


def main(bootstrap: str, way: str, place: str, die_after: str) -> None:
    cluster = Cluster(bootstrap)
    worker: Way = WAYS[way](cluster, place)
    topic = stock.name if way == "latest" else parcels.name
    begin, end = worker.position(), cluster.ends(topic)[0]
    for seen, record in enumerate(read(cluster, topic, {0: (begin, end)}), start=1):
        if int(die_after) == 0 and seen == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        worker.take(record)
        if seen == int(die_after):
            print(seen, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    worker.done(end)
    print(end - begin, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
