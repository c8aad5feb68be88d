"""A follower that runs in a thread while a block runs, and its SQLite view, which is read with sqlite3 alone."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.committed_records import headers_of
from faults.wait import until, unwatch, watch
from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.follow.follower import Follower
from headrace.model.declarations import Flow, View
from headrace.stores.registry import open_writer

__all__ = ["Followed", "StoredView", "dead_letters", "following", "produce", "read_view"]

Rows = dict[Any, tuple[Any, ...]]


@dataclass(frozen=True)
class StoredView:
    generation: int
    batch: int
    offsets: str
    rows: Rows
    """The rows, by their first column."""


def read_view(path: Path, view: str) -> StoredView | None:
    """Return position and rows in one snapshot, or None if the view does not exist yet."""
    if not path.exists():
        return None
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.execute("BEGIN")
        try:
            position = connection.execute(
                "SELECT generation, batch, offsets FROM _headrace_views WHERE view = ? AND part = 'serving'",
                (view,),
            ).fetchone()
        except sqlite3.OperationalError:
            return None
        rows = connection.execute(f'SELECT * FROM "{view}"').fetchall() if position else []
        return (
            StoredView(position[0], position[1], position[2], {row[0]: row for row in rows})
            if position
            else None
        )


class Followed:
    def __init__(self, follower: Follower, path: Path) -> None:
        self.follower = follower
        self.path = path
        self.lines: list[str] = []
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        return self.follower.view.name

    def read(self) -> StoredView | None:
        return read_view(self.path, self.name)

    def expect(self, rows: Rows, *, batch: int | None = None, generation: int | None = None) -> StoredView:
        """Wait until the view serves these rows."""

        def read_if_expected() -> StoredView | None:
            seen = self.read()
            matches = seen is not None and seen.rows == rows
            matches = matches and (batch is None or (seen is not None and seen.batch == batch))
            matches = matches and (generation is None or (seen is not None and seen.generation == generation))
            return seen if matches else None

        try:
            stored = until(read_if_expected, f"view {self.name}", timeout_s=480, pause_s=0.005)
        except AssertionError as error:
            raise AssertionError(
                f"{self.read()}\nwanted {rows}\n{self.follower.status}\n{self.lines}"
            ) from error
        assert stored is not None
        return stored

    def until_state(self, state: str, reason: str = "") -> None:
        until(
            lambda: self.follower.status.state == state and reason in self.follower.status.reason,
            f"{state} {reason}, now {self.follower.status}",
            timeout_s=120,
            pause_s=0.005,
        )


@contextlib.contextmanager
def following(
    cluster: Cluster, view: View, flows: Sequence[Flow], home: Path, *, may_end: bool = False
) -> Iterator[Followed]:
    stop = threading.Event()
    followed = Followed(
        Follower(
            view,
            flows,
            cluster,
            lambda: open_writer(view, "shop", home),
            print_line=lambda line: followed.lines.append(line),
        ),
        home / "shop.db",
    )

    def run() -> None:
        try:
            followed.follower.run(stop)
        except BaseException as error:
            followed.error = error

    thread = threading.Thread(target=run)
    thread.start()
    if not may_end:
        watch(
            followed,
            lambda: f"the follower of {followed.name} ended: {followed.error}" if followed.error else None,
        )
    try:
        yield followed
    finally:
        unwatch(followed)
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    if followed.error is not None and not may_end:
        raise followed.error


def produce(
    cluster: Cluster, topic: str, records: Sequence[tuple[bytes | None, bytes | None]], partition: int = -1
) -> None:
    producer = cluster.producer({"linger.ms": 0})
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=partition)
    assert producer.flush(30) == 0


def dead_letters(cluster: Cluster, topic: str) -> list[tuple[bytes | None, bytes | None, dict[str, str]]]:
    if cluster.topic(topic) is None:
        return []
    messages = read(cluster, topic, {0: (0, cluster.ends(topic)[0])})
    return [
        (
            message.key(),
            message.value(),
            {name: value.decode() for name, value in headers_of(message).items()},
        )
        for message in messages
    ]
