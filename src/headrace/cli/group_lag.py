"""The lag of consumer groups: committed offsets compared with the bounds of the log.

Lag is the number of records that a group has yet to read. Records that retention deleted before the group read them are
not part of the lag. They are counted separately, as *gone*, because a smaller lag alone would hide the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from headrace.cli.errors import CliError, GroupUnknown, TopicUnknown
from headrace.cli.kafka import bounds_of, translate_log_error
from headrace.cli.session import Session
from headrace.client.errors import LogError
from headrace.client.group_admin import Group, GroupAdminProcess
from headrace.client.offset_spec import Bounds, Partition

__all__ = ["GroupLag", "GroupLagReader", "next_record_ages", "state_text"]

_AGE_WAIT_S = 2.0


def state_text(name: str) -> str:
    """Convert ``PREPARING_REBALANCING`` to ``preparing-rebalancing``."""
    return name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of one group in one partition.

    ``committed`` is None if a member reads the partition but has not committed an offset yet.
    """

    group: str
    topic: str
    partition: int
    committed: int | None
    bounds: Bounds | None
    """None if the topic no longer exists."""

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.bounds is None:
            return None
        return max(0, self.bounds.end - max(self.committed, self.bounds.start))

    @property
    def gone(self) -> int:
        """Records deleted before the group read them."""
        if self.committed is None or self.bounds is None:
            return 0
        return max(0, self.bounds.start - self.committed)

    def next_to_read(self) -> TopicPartition:
        assert self.committed is not None
        assert self.bounds is not None
        return TopicPartition(self.topic, self.partition, max(self.committed, self.bounds.start))

    def row(self) -> dict[str, object]:
        return {
            "group": self.group,
            "topic": self.topic,
            "partition": self.partition,
            "committed": self.committed,
            "end": None if self.bounds is None else self.bounds.end,
            "lag": self.lag,
            "gone": self.gone,
        }


class GroupLagReader:
    """Reads and changes the consumer groups of a cluster. Where a ``CliError`` fits, it raises that instead of
    a ``LogError``. ``close`` ends its worker process.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._admin = GroupAdminProcess(session.cluster(), wait_for_coordinator=True, skip_unauthorized=False)

    def close(self) -> None:
        self._admin.close()

    def list_groups(self, states: Collection[str] = ()) -> dict[str, tuple[str, str]]:
        """Return state and type by group, e.g. ``("stable", "classic")``. If ``states`` is not empty, return only
        groups in these states.
        """
        try:
            listed = self._admin.list_groups()
        except LogError as error:
            raise translate_log_error(self._session, error, "listing groups") from None
        groups = {name: (state_text(state), kind.lower()) for name, (state, kind) in listed.items()}
        return {name: group for name, group in groups.items() if not states or group[0] in states}

    def describe(self, group: str) -> Group:
        try:
            described = self._admin.describe([group])
        except LogError as error:
            raise translate_log_error(
                self._session, error, f"describing group {group!r}", group=group
            ) from None
        if group not in described:
            raise GroupUnknown(group)
        return described[group]

    def committed(self, groups: Sequence[str]) -> dict[str, dict[Partition, int]]:
        """Return committed offsets by group; empty for a group that does not exist."""
        try:
            committed = self._admin.committed_offsets(groups)
        except LogError as error:
            operation = f"fetching the committed offsets of {', '.join(map(repr, groups))}"
            raise translate_log_error(self._session, error, operation) from None
        return {group: committed.get(group, {}) for group in groups}

    def alter_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        try:
            self._admin.alter_offsets(group, offsets)
        except LogError as error:
            raise translate_log_error(
                self._session, error, f"changing the offsets of group {group!r}", group=group
            ) from None

    def delete(self, groups: Sequence[str]) -> dict[str, CliError | LogError]:
        """Delete groups. Return an error for each group that was not deleted."""
        return {
            group: translate_log_error(self._session, error, f"deleting group {group!r}", group=group)
            for group, error in self._admin.delete(groups).items()
        }

    def lags(
        self, groups: Sequence[str], *, assigned: Mapping[str, Iterable[Partition]] | None = None
    ) -> list[GroupLag]:
        """Return the lag in every partition with a committed offset, and in the partitions of ``assigned``."""
        committed = self.committed(groups)
        partitions = {
            group: dict.fromkeys([*offsets, *(assigned or {}).get(group, ())])
            for group, offsets in committed.items()
        }
        bounds = self._existing_bounds([partition for group in partitions.values() for partition in group])
        return [
            GroupLag(group, topic, number, committed[group].get((topic, number)), bounds.get((topic, number)))
            for group, assigned_or_committed in partitions.items()
            for topic, number in sorted(assigned_or_committed)
        ]

    def _existing_bounds(self, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
        """Request the bounds of all partitions together. If a topic does not exist, request each topic separately, and
        leave out missing topics.
        """
        wanted = sorted(set(partitions))
        try:
            return bounds_of(self._session, wanted)
        except TopicUnknown:
            bounds: dict[Partition, Bounds] = {}
            for topic in sorted({name for name, _ in wanted}):
                try:
                    bounds |= bounds_of(
                        self._session, [partition for partition in wanted if partition[0] == topic]
                    )
                except TopicUnknown:
                    continue
            return bounds


def next_record_ages(session: Session, lags: Iterable[GroupLag], now_ms: int) -> dict[GroupLag, float | None]:
    """Return seconds since the oldest unread record of each group and partition was written; 0 if all are read.

    This reads one record per partition, group by group. The age is None if the record does not arrive in two seconds.
    """
    ages: dict[GroupLag, float | None] = {lag: 0.0 if lag.lag == 0 else None for lag in lags}
    groups: dict[str, dict[Partition, GroupLag]] = {}
    for lag in ages:
        if lag.lag:
            groups.setdefault(lag.group, {})[lag.topic, lag.partition] = lag
    if not groups:
        return ages
    consumer = session.cluster().consumer(
        {
            "group.id": "headrace-age",
            "enable.partition.eof": False,
            "max.partition.fetch.bytes": 1_024,
            "queued.min.messages": 1,
            "fetch.wait.max.ms": 50,
        }
    )
    with closing(consumer):
        for unread in groups.values():
            for partition, timestamp_ms in _next_timestamps(consumer, unread).items():
                ages[unread[partition]] = max(0, now_ms - timestamp_ms) / 1_000
    return ages


def _next_timestamps(consumer: Consumer, unread: Mapping[Partition, GroupLag]) -> dict[Partition, int]:
    consumer.assign([lag.next_to_read() for lag in unread.values()])
    timestamps: dict[Partition, int] = {}
    while len(timestamps) < len(unread):
        message: Any = consumer.poll(_AGE_WAIT_S)
        if message is None:
            break
        if message.error() is not None:
            raise CliError(f"reading the next record failed: {message.error().str()}")
        kind, timestamp_ms = message.timestamp()
        if kind:
            timestamps.setdefault((message.topic(), message.partition()), timestamp_ms)
    return timestamps
