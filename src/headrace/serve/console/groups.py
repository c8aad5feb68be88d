"""Describes consumer groups, with their members and lag, and moves their committed offsets."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.group_admin import Group, GroupAdminProcess
from headrace.client.offset_spec import (
    OFFSET_FORMS,
    OffsetMove,
    OffsetSpec,
    Partition,
    parse_offset_or_time,
    plan_moves,
    resolve_offsets,
)
from headrace.clock import Clock
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import Reader
from headrace.serve.console.documents import GroupDetail, GroupMember, GroupPartition, GroupSummary
from headrace.serve.console.topics import bounds_of, first_since
from headrace.serve.errors import GroupActive, InvalidRequest, NotFound, OffsetNotFound

__all__ = ["GroupService"]

_MEASURED_MAX = 500
"""At most this many groups, or partitions of one group, have their lag measured in bytes and seconds."""
_METERS_MAX = 16
"""Maximum number of lag meters, including the meter of the list. Above this number, the least recently used meter is
closed.
"""
_GROUP_TOPICS_S = 30.0
"""How long the topics of the groups are cached."""


class GroupService:
    """Thread-safe."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._admin = GroupAdminProcess(cluster)
        self._lock = threading.Lock()
        self._meters: dict[str | None, LagMeter] = {}
        """Meters by group; the key None is the list of all groups. A meter forgets the rate of every reader that a call
        leaves out. So the list and each recently queried group have their own meter.
        """
        self._group_topics: dict[str, set[str]] = {}
        self._group_topics_s: float | None = None

    def close(self) -> None:
        with self._lock:
            for meter in self._meters.values():
                meter.close()
        self._admin.close()

    def all(self) -> list[GroupSummary]:
        """Return all groups, sorted by name."""
        listings = self._admin.list_groups()
        names = [*listings]
        committed = self._admin.committed_offsets(names)
        descriptions = self._describe_existing(names)
        readers = [
            Reader("group", name, "committed", offsets, read_committed=False)
            for name, offsets in committed.items()
            if offsets
        ]
        lags = {lag.reader.name: lag for lag in self._measure(None, readers[:_MEASURED_MAX])}
        return [
            GroupSummary(
                group=name,
                state=_kebab_case(listings[name][0]),
                type=_kebab_case(listings[name][1]),
                members=len(descriptions[name].members) if name in descriptions else None,
                topics=sorted({topic for topic, _ in committed.get(name, {})}),
                **_lag_fields(lags.get(name)),
            )
            for name in names
        ]

    def groups_reading(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets in the topic. Queries the log at most twice a minute."""
        now = self._clock.steady()
        if self._group_topics_s is None or now - self._group_topics_s >= _GROUP_TOPICS_S:
            committed = self._admin.committed_offsets([*self._admin.list_groups()])
            self._group_topics = {
                name: {topic for topic, _ in offsets} for name, offsets in committed.items()
            }
            self._group_topics_s = now
        return [name for name, topics in self._group_topics.items() if topic in topics]

    def describe(self, name: str) -> GroupDetail:
        group = self._describe_existing([name]).get(name)
        committed = self._admin.committed_offsets([name]).get(name, {})
        members = list(group.members) if group else []
        if not members and not committed:
            raise NotFound(
                f"group {name[:100]!r} has neither members nor committed offsets",
                hint="list the groups: GET /v1/log/groups",
            )
        assigned = {partition: member for member in members for partition in member.partitions}
        partitions = sorted({*committed, *assigned})
        measured = self._measure(
            name,
            [
                Reader("group", name, "committed", {partition: committed[partition]}, read_committed=False)
                for partition in committed
            ][:_MEASURED_MAX],
        )
        lags = {partition: lag for lag in measured for partition in lag.reader.offsets}
        bounds = bounds_of(self._cluster, partitions)
        measured_lags = [lag for lag in lags.values() if lag.records is not None]
        losses = [
            lag.loss.in_s for lag in measured_lags if lag.loss is not None and lag.loss.in_s is not None
        ]
        return GroupDetail(
            group=name,
            state=_kebab_case(group.state) if group else "unknown",
            type=_kebab_case(group.type) if group else "unknown",
            assignor=group.assignor if group else None,
            lag=sum(
                _record_lag(lags.get(partition), at, bounds.get(partition))
                for partition, at in committed.items()
            ),
            lag_bytes=_sum_if_known([lag.est_bytes for lag in measured_lags]),
            lag_s=_max_if_known([lag.age_s for lag in measured_lags]),
            gone=sum(lag.gone for lag in lags.values()),
            time_to_loss_s=min(losses, default=None),
            members=[
                GroupMember(
                    *(member.member_id, member.client_id, member.host, member.instance_id),
                    partitions=len(member.partitions),
                )
                for member in members
            ],
            partitions=[
                GroupPartition(
                    topic=partition[0],
                    partition=partition[1],
                    committed=committed.get(partition),
                    start=bounds[partition].start if partition in bounds else None,
                    end=bounds[partition].end if partition in bounds else None,
                    **_lag_fields(lags.get(partition)),
                    member=assigned[partition].client_id if partition in assigned else None,
                    host=assigned[partition].host if partition in assigned else None,
                )
                for partition in partitions
            ],
        )

    # Moves

    def moves(
        self, name: str, to: str, topic: str | None, partitions: Collection[int] | None
    ) -> tuple[list[OffsetMove], list[str]]:
        """Return the planned moves, and the group's active members."""
        target = parse_offset_or_time(to, self._clock.now_ms())
        if target is None:
            raise OffsetNotFound(f"{to[:60]!r} is not an offset or a time", hint=f"write {OFFSET_FORMS}")
        group = self._describe_existing([name]).get(name)
        committed = self._admin.committed_offsets([name]).get(name, {})
        bounds = bounds_of(self._cluster, self._select_partitions(committed, topic, partitions))
        if not bounds:
            raise NotFound(
                f"group {name[:100]!r} has no committed offsets in any existing topic",
                hint="set the field topic of the request to the name of a topic",
            )
        targets = self._targets(target, bounds)
        moves = plan_moves(targets, committed, bounds)
        for move in moves:
            if not move.is_in_range:
                raise OffsetNotFound(
                    f"{move.topic} [{move.partition}] has no offset {move.new}:"
                    f" it has offsets {move.bounds.start} to {move.bounds.end}",
                    hint="use start or end, or choose partitions that have the offset",
                )
        return moves, sorted(
            {f"{member.client_id} at {member.host}" for member in (group.members if group else ())}
        )

    def seek(self, name: str, moves: Sequence[OffsetMove], active: Sequence[str]) -> None:
        if active:
            raise GroupActive(
                f"group {name!r} has active members: {', '.join(active[:5])}",
                hint="stop the members first: they would overwrite the moved offsets",
            )
        self._admin.alter_offsets(name, [(move.topic, move.partition, move.new) for move in moves])

    def _select_partitions(
        self, committed: Mapping[Partition, int], topic: str | None, partitions: Collection[int] | None
    ) -> list[Partition]:
        if topic is None:
            if partitions is not None:
                raise InvalidRequest("partitions need a topic: set topic, too")
            return sorted(committed)
        count = self._cluster.expect_topic(topic).partitions
        missing = next((number for number in partitions or () if number >= count), None)
        if missing is not None:
            raise NotFound(
                f"topic {topic!r} has no partition {missing}",
                hint=f"the topic has {count} partitions, numbered from 0",
            )
        numbers = range(count) if partitions is None else sorted(set(partitions))
        return [(topic, number) for number in numbers]

    def _targets(self, target: OffsetSpec, bounds: Mapping[Partition, Any]) -> dict[Partition, int]:
        return resolve_offsets(target, bounds, lambda time_ms: first_since(self._cluster, bounds, time_ms))

    def _measure(self, group: str | None, readers: list[Reader]) -> list[Lag]:
        """Measure the lag of readers. ``group`` is None for the list of all groups."""
        if not readers:
            return []
        with self._lock:
            meter = self._meters.pop(group, None) or LagMeter(self._cluster, self._clock)
            self._meters[group] = meter
            if len(self._meters) > _METERS_MAX:
                self._meters.pop(next(iter(self._meters))).close()
            return meter.measure(readers)

    def _describe_existing(self, names: Sequence[str]) -> Mapping[str, Group]:
        """Return the description of each group that exists."""
        if "" in names:
            raise NotFound("the group name is empty", hint="list the groups: GET /v1/log/groups")
        return self._admin.describe(names)


def _kebab_case(name: str) -> str:
    return name.lower().replace("_", "-")


def _lag_fields(lag: Lag | None) -> dict[str, Any]:
    loss = lag.loss if lag else None
    return {
        "lag": lag.records if lag else None,
        "lag_bytes": lag.est_bytes if lag else None,
        "lag_s": _rounded(lag.age_s) if lag else None,
        "gone": lag.gone if lag else 0,
        "time_to_loss_s": _rounded(loss.in_s) if loss else None,
    }


def _record_lag(lag: Lag | None, at: int, bounds: Any) -> int:
    """Return the lag in records. If it was not measured, compute it from the partition's offsets."""
    if lag is not None:
        return lag.records or 0
    return 0 if bounds is None else max(0, bounds.end - max(at, bounds.start))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _sum_if_known(values: list[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None


def _max_if_known(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(max(numbers, default=0.0), 3) if len(numbers) == len(values) else None
