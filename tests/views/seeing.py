"""A view as anybody sees it, with SQLite alone; and a follower at work for as long as a block lasts."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.model.flow import Flow
from headrace.model.view import View
from headrace.views.follower import Follower
from headrace.views.opening import open_store
from tests.support.waiting import until, unwatch, watch

__all__ = ["Followed", "Seen", "dead_letters", "following", "look", "produce"]

Rows = dict[Any, tuple[Any, ...]]


@dataclass(frozen=True)
class Seen:
    generation: int
    batch: int
    offsets: str
    rows: Rows
    """By the first column."""


def look(path: Path, view: str) -> Seen | None:
    """Position and rows, as of one moment; None if there is no such view yet."""
    if not path.exists():
        return None
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.execute("BEGIN")
        try:
            found = connection.execute(
                "SELECT generation, batch, offsets FROM _headrace_views WHERE view = ? AND part = 'serving'",
                (view,),
            ).fetchone()
        except sqlite3.OperationalError:
            return None
        rows = connection.execute(f'SELECT * FROM "{view}"').fetchall() if found else []
        return Seen(*found, {row[0]: row for row in rows}) if found else None


class Followed:
    def __init__(self, follower: Follower, path: Path) -> None:
        self.follower = follower
        self.path = path
        self.told: list[str] = []
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        return self.follower.view.name

    def look(self) -> Seen | None:
        return look(self.path, self.name)

    def expect(self, rows: Rows, *, batch: int | None = None, generation: int | None = None) -> Seen:
        """Wait until this is what serves; what is wrong meanwhile is only late."""

        def arrived() -> Seen | None:
            seen = self.look()
            fits = seen is not None and seen.rows == rows
            fits = fits and (batch is None or (seen is not None and seen.batch == batch))
            fits = fits and (generation is None or (seen is not None and seen.generation == generation))
            return seen if fits else None

        try:
            found = until(arrived, f"view {self.name}", timeout_s=480, pause_s=0.005)
        except AssertionError as late:
            raise AssertionError(
                f"{self.look()}\nwanted {rows}\n{self.follower.status}\n{self.told}"
            ) from late
        assert found is not None
        return found

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
            lambda: open_store(view, "shop", home),
            tell=lambda line: followed.told.append(line),
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
        where = {} if partition < 0 else {"partition": partition}
        producer.produce(topic, key=key, value=value, **where)
    assert producer.flush(30) == 0


def dead_letters(cluster: Cluster, topic: str) -> list[tuple[bytes | None, bytes | None, dict[str, str]]]:
    if cluster.topic(topic) is None:
        return []
    found = read(cluster, topic, {0: (0, cluster.ends(topic)[0])})
    return [
        (one.key(), one.value(), {name: text.decode() for name, text in one.headers() or []}) for one in found
    ]
