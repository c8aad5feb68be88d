"""What must be kept beside records: committed offsets, topics and their settings, and where a log begins.

The workers note what they asked for and what was answered. An answer makes the new state certain; without one the
old state and the new are both right, but nothing between them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.faults import calls
from bench.faults.connection import Connection, Gone
from bench.faults.oracle import Ledger, Place
from bench.faults.worker import Worker

__all__ = ["CommittingWorker", "CuttingWorker", "TopicsWorker"]

_RETRIABLE_COMMIT = frozenset({14, 15, 16})
_KEY = "max.message.bytes"


class CommittingWorker(Worker):
    """Commits ever greater offsets of several partitions at once, in several groups."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        places: list[Place],
        rng: random.Random,
        *,
        groups: int = 3,
        refusals: frozenset[int] = frozenset(),
        pause_s: float = 0.001,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, port, ledger, timeout_s=timeout_s)
        self._places = places
        self._rng = rng
        self._groups = [f"{name}-{index}" for index in range(groups)]
        self._acked: dict[str, int] = dict.fromkeys(self._groups, 0)
        self._asked: dict[str, int] = dict.fromkeys(self._groups, 0)
        self._refusals = refusals | _RETRIABLE_COMMIT
        self._pause_s = pause_s
        self.refused: list[tuple[float, int]] = []
        self.commits = 0

    @property
    def in_flight(self) -> int:
        return sum(self._asked[group] > self._acked[group] for group in self._groups)

    def work(self) -> None:
        while not self.finishing:
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    while not self.finishing:
                        self._commit(connection, self._rng.choice(self._groups))
                        time.sleep(self._rng.random() * self._pause_s)
                except Gone:
                    continue

    def _commit(self, connection: Connection, group: str) -> None:
        number = self._asked[group] = self._asked[group] + 1
        offsets = dict.fromkeys(self._places, number)
        errors = calls.commit(connection, group, offsets, metadata=f"at {number}")
        if not any(errors):
            self._acked[group] = number
            self.commits += 1
            return
        self.refused.append((time.monotonic(), max(errors)))
        strange = set(errors) - self._refusals - {0}
        if strange:
            self.ledger.object(f"a commit of {group} got {sorted(strange)}")

    def check(self, connection: Connection) -> None:
        """Hold the broker's answer against what was acknowledged."""
        for group in self._groups:
            error, found = calls.committed(connection, group, self._places)
            acked, asked = self._acked[group], self._asked[group]
            if error:
                self.ledger.object(f"committed offsets of {group}: error {error}")
                continue
            numbers = {found[place][0] for place in self._places}
            for place in self._places:
                offset, metadata = found[place]
                offset = max(offset, 0)
                if offset < acked:
                    self.ledger.lost += 1
                    self.ledger.object(
                        f"{group} committed {acked} of {place}, acknowledged; now there is {offset}"
                    )
                elif offset > asked:
                    self.ledger.object(
                        f"{group} has {offset} of {place}, and the last it asked for was {asked}"
                    )
                if offset and metadata != f"at {offset}":
                    self.ledger.object(
                        f"{group} has offset {offset} of {place} with the metadata {metadata!r}"
                    )
            if len(numbers) > 1:
                self.ledger.object(f"one commit of {group} is there by half: {sorted(numbers)}")
            # What was found is certain from now on.
            self._acked[group] = max(acked, *numbers)


class CuttingWorker(Worker):
    """Asks for the beginning of a partition to be deleted, again and again, never farther than was acknowledged."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        place: Place,
        rng: random.Random,
        *,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, port, ledger, timeout_s=timeout_s)
        self._place = place
        self._rng = rng
        self.asked = 0

    def work(self) -> None:
        while not self.finishing:
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    while not self.finishing:
                        self._cut(connection)
                        time.sleep(self._rng.random() * 0.2)
                except Gone:
                    continue

    def _cut(self, connection: Connection) -> None:
        error, end = calls.list_offset(connection, *self._place, calls.LATEST)
        offset = int(end * self._rng.random())
        if error or offset <= self.asked:
            return
        self.asked = offset
        error, start = calls.delete_records(connection, *self._place, offset)
        if error:
            self.ledger.object(f"cutting {self._place} at {offset} got error {error}")
        else:
            self.ledger.saw_start(self._place, start)


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic as it must be found; ``id`` is ``None`` until it was first seen."""

    partitions: int
    setting: str
    id: bytes | None = None


class TopicsWorker(Worker):
    """Creates, alters, grows and deletes topics of its own."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        rng: random.Random,
        *,
        topics_max: int = 6,
        refusals: frozenset[int] = frozenset(),
        pause_s: float = 0.01,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, port, ledger, timeout_s=timeout_s)
        self._rng = rng
        self._topics_max = topics_max
        self._refusals = refusals
        self._pause_s = pause_s
        self._made = 0
        self._certain: dict[str, _Topic] = {}
        self._doubtful: tuple[str, _Topic | None, _Topic | None] | None = None
        self.changes = 0
        self.refused: list[tuple[float, int]] = []

    @property
    def in_flight(self) -> int:
        return int(self._doubtful is not None)

    def work(self) -> None:
        while not self.finishing:
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    self.check(connection)
                    while not self.finishing:
                        self._change(connection)
                        time.sleep(self._rng.random() * self._pause_s)
                except Gone:
                    continue

    def _change(self, connection: Connection) -> None:
        kind = self._rng.choice(["create", "alter", "alter", "grow", "delete"])
        if not self._certain or (kind == "create" and len(self._certain) < self._topics_max):
            self._made += 1
            name = f"{self.name}-{self._made}"
            fresh = _Topic(self._rng.randint(1, 3), str(self._rng.randint(100_000, 1_000_000)))
            self._ask(
                (name, None, fresh),
                36,
                lambda: calls.create_topic(connection, name, fresh.partitions, {_KEY: fresh.setting}),
            )
            return
        name = self._rng.choice(sorted(self._certain))
        now = self._certain[name]
        if kind == "delete":
            self._ask((name, now, None), 3, lambda: calls.delete_topic(connection, name))
        elif kind == "grow" and now.partitions < 5:
            grown = replace(now, partitions=now.partitions + 1)
            self._ask(
                (name, now, grown), 37, lambda: calls.create_partitions(connection, name, grown.partitions)
            )
        else:
            altered = replace(now, setting=str(self._rng.randint(100_000, 1_000_000)))
            self._ask(
                (name, now, altered), 0, lambda: calls.alter_topic(connection, name, {_KEY: altered.setting})
            )

    def _ask(
        self, change: tuple[str, _Topic | None, _Topic | None], already: int, request: Callable[[], int]
    ) -> None:
        """Ask until it is answered without an error. A refused change may be there after the next start, or not, or it
        may be made already, which a second request learns by the error ``already``.
        """
        self._doubtful = change
        name, _, after = change
        refused_before = False
        while (error := request()) and not (refused_before and error == already):
            refused_before = True
            self.refused.append((time.monotonic(), error))
            if error not in self._refusals:
                self.ledger.object(f"a change of topic {name} got error {error}")
            if self.finishing:
                return
            time.sleep(0.02)
        self.changes += 1
        self._doubtful = None
        if after is None:
            del self._certain[name]
        else:
            self._certain[name] = after

    def check(self, connection: Connection) -> None:
        """Hold the broker's topics against what was acknowledged; a doubtful change is decided by what is there."""
        seen = {
            topic.name: topic for topic in calls.topics(connection) if topic.name.startswith(f"{self.name}-")
        }
        found: dict[str, _Topic] = {}
        for name, topic in seen.items():
            error, values = calls.topic_configs(connection, name, [_KEY])
            if topic.error or error:
                self.ledger.object(f"topic {name} is answered with errors {topic.error} and {error}")
                continue
            found[name] = _Topic(topic.partitions, values.get(_KEY) or "", topic.id)
        doubtful, self._doubtful = self._doubtful, None
        for name in sorted(set(found) | set(self._certain)):
            before = after = self._certain.get(name)
            if doubtful is not None and doubtful[0] == name:
                before, after = doubtful[1], doubtful[2]
            now = found.get(name)
            if not any(_same(now, wanted) for wanted in (before, after)):
                if now is None:
                    self.ledger.lost += 1
                self.ledger.object(f"topic {name} is {now}, and should be {before}" + _or(before, after))
            if now is None:
                self._certain.pop(name, None)
            else:
                self._certain[name] = now


def _same(found: _Topic | None, wanted: _Topic | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return replace(found, id=None) == replace(wanted, id=None) and wanted.id in (None, found.id)


def _or(before: _Topic | None, after: _Topic | None) -> str:
    return "" if before == after else f" or {after}"
