"""Durable state other than records: committed offsets, topics and their settings, and log start offsets.

The clients record requests and responses. After a response, the new state is certain. Without a response, either the
old or the new state is correct, but not a mixture of the two.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from faults.log.client_thread import ClientThread
from faults.log.oracle import Ledger, PartitionId
from faults.protocol import calls
from faults.protocol.connection import Connection, Gone

__all__ = ["CommitClient", "DeletionClient", "TopicClient"]

_RETRIABLE_COMMIT = frozenset({14, 15, 16})
_KEY = "max.message.bytes"


class CommitClient(ClientThread):
    """Commits increasing offsets of several partitions at once, in several groups."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        partition_ids: list[PartitionId],
        rng: random.Random,
        *,
        groups: int = 3,
        refusals: frozenset[int] = frozenset(),
        pause_s: float = 0.001,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, port, ledger, timeout_s=timeout_s)
        self._partition_ids = partition_ids
        self._rng = rng
        self._groups = [f"{name}-{index}" for index in range(groups)]
        self._acked: dict[str, int] = dict.fromkeys(self._groups, 0)
        self._requested: dict[str, int] = dict.fromkeys(self._groups, 0)
        self._refusals = refusals | _RETRIABLE_COMMIT
        self._pause_s = pause_s
        self.refused: list[tuple[float, int]] = []
        self.commits = 0

    @property
    def in_flight(self) -> int:
        return sum(self._requested[group] > self._acked[group] for group in self._groups)

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
        number = self._requested[group] = self._requested[group] + 1
        offsets = dict.fromkeys(self._partition_ids, number)
        errors = calls.commit(connection, group, offsets, metadata=f"at {number}")
        if not any(errors):
            self._acked[group] = number
            self.commits += 1
            return
        self.refused.append((time.monotonic(), max(errors)))
        unexpected = set(errors) - self._refusals - {0}
        if unexpected:
            self.ledger.report_problem(f"a commit of {group} got errors {sorted(unexpected)}")

    def check(self, connection: Connection) -> None:
        """Compare the broker's committed offsets with the acknowledged commits."""
        for group in self._groups:
            error, committed = calls.committed(connection, group, self._partition_ids)
            acked, requested = self._acked[group], self._requested[group]
            if error:
                self.ledger.report_problem(f"committed offsets of {group}: error {error}")
                continue
            numbers = {committed[partition_id][0] for partition_id in self._partition_ids}
            for partition_id in self._partition_ids:
                offset, metadata = committed[partition_id]
                offset = max(offset, 0)
                if offset < acked:
                    self.ledger.lost += 1
                    self.ledger.report_problem(
                        f"{group} committed {acked} of {partition_id} with an acknowledgement, but now has {offset}"
                    )
                elif offset > requested:
                    self.ledger.report_problem(
                        f"{group} has {offset} of {partition_id}, but the last requested commit was {requested}"
                    )
                if offset and metadata != f"at {offset}":
                    self.ledger.report_problem(
                        f"{group} has offset {offset} of {partition_id} with the wrong metadata {metadata!r}"
                    )
            if len(numbers) > 1:
                self.ledger.report_problem(f"a commit of {group} is partial: {sorted(numbers)}")
            # The committed offset that was read is certain from now on.
            self._acked[group] = max(acked, *numbers)


class DeletionClient(ClientThread):
    """Repeatedly deletes records at the beginning of a partition."""

    def __init__(
        self,
        name: str,
        port: int,
        ledger: Ledger,
        partition_id: PartitionId,
        rng: random.Random,
        *,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(name, port, ledger, timeout_s=timeout_s)
        self._partition_id = partition_id
        self._rng = rng
        self.requested = 0

    def work(self) -> None:
        while not self.finishing:
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    while not self.finishing:
                        self._delete_beginning(connection)
                        time.sleep(self._rng.random() * 0.2)
                except Gone:
                    continue

    def _delete_beginning(self, connection: Connection) -> None:
        error, end = calls.list_offset(connection, *self._partition_id, calls.LATEST)
        offset = int(end * self._rng.random())
        if error or offset <= self.requested:
            return
        self.requested = offset
        error, start = calls.delete_records(connection, *self._partition_id, offset)
        if error:
            self.ledger.report_problem(
                f"deleting the records of {self._partition_id} below {offset} got error {error}"
            )
        else:
            self.ledger.record_start(self._partition_id, start)


@dataclass(frozen=True, slots=True)
class _Topic:
    """The expected state of a topic. ``id`` is None until the broker has returned it."""

    partitions: int
    setting: str
    id: bytes | None = None


class TopicClient(ClientThread):
    """Creates, alters, extends and deletes its own topics."""

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
        self._created = 0
        self._confirmed: dict[str, _Topic] = {}
        self._unconfirmed: tuple[str, _Topic | None, _Topic | None] | None = None
        self.changes = 0
        self.refused: list[tuple[float, int]] = []

    @property
    def in_flight(self) -> int:
        return int(self._unconfirmed is not None)

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
        if not self._confirmed or (kind == "create" and len(self._confirmed) < self._topics_max):
            self._created += 1
            name = f"{self.name}-{self._created}"
            fresh = _Topic(self._rng.randint(1, 3), str(self._rng.randint(100_000, 1_000_000)))
            self._call(
                (name, None, fresh),
                36,
                lambda: calls.create_topic(connection, name, fresh.partitions, {_KEY: fresh.setting}),
            )
            return
        name = self._rng.choice(sorted(self._confirmed))
        current = self._confirmed[name]
        if kind == "delete":
            self._call((name, current, None), 3, lambda: calls.delete_topic(connection, name))
        elif kind == "grow" and current.partitions < 5:
            extended = replace(current, partitions=current.partitions + 1)
            self._call(
                (name, current, extended),
                37,
                lambda: calls.create_partitions(connection, name, extended.partitions),
            )
        else:
            altered = replace(current, setting=str(self._rng.randint(100_000, 1_000_000)))
            self._call(
                (name, current, altered),
                0,
                lambda: calls.alter_topic(connection, name, {_KEY: altered.setting}),
            )

    def _call(
        self, change: tuple[str, _Topic | None, _Topic | None], retry_error: int, request: Callable[[], int]
    ) -> None:
        """Retry until the response has no error. The broker may have applied a refused change already, or may apply it
        at its next start. A retry then gets ``retry_error``.
        """
        self._unconfirmed = change
        name, _, after = change
        refused_before = False
        while (error := request()) and not (refused_before and error == retry_error):
            refused_before = True
            self.refused.append((time.monotonic(), error))
            if error not in self._refusals:
                self.ledger.report_problem(f"a change of topic {name} got error {error}")
            if self.finishing:
                return
            time.sleep(0.02)
        self.changes += 1
        self._unconfirmed = None
        if after is None:
            del self._confirmed[name]
        else:
            self._confirmed[name] = after

    def check(self, connection: Connection) -> None:
        """Compare the broker's topics with the acknowledged changes. If a change got no response, the topics show
        whether the broker applied it.
        """
        seen = {
            topic.name: topic for topic in calls.topics(connection) if topic.name.startswith(f"{self.name}-")
        }
        topics: dict[str, _Topic] = {}
        for name, topic in seen.items():
            error, values = calls.topic_configs(connection, name, [_KEY])
            if topic.error or error:
                self.ledger.report_problem(f"topic {name} got errors {topic.error} and {error}")
                continue
            topics[name] = _Topic(topic.partitions, values.get(_KEY) or "", topic.id)
        unconfirmed, self._unconfirmed = self._unconfirmed, None
        for name in sorted(set(topics) | set(self._confirmed)):
            before = after = self._confirmed.get(name)
            if unconfirmed is not None and unconfirmed[0] == name:
                before, after = unconfirmed[1], unconfirmed[2]
            current = topics.get(name)
            if not any(_same(current, expected) for expected in (before, after)):
                if current is None:
                    self.ledger.lost += 1
                self.ledger.report_problem(
                    f"topic {name} is {current} instead of {before}" + _or_after(before, after)
                )
            if current is None:
                self._confirmed.pop(name, None)
            else:
                self._confirmed[name] = current


def _same(actual: _Topic | None, expected: _Topic | None) -> bool:
    if actual is None or expected is None:
        return actual is expected
    return replace(actual, id=None) == replace(expected, id=None) and expected.id in (None, actual.id)


def _or_after(before: _Topic | None, after: _Topic | None) -> str:
    return "" if before == after else f" or {after}"
