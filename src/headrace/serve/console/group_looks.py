"""Consumer groups: what there is, who their members are, how far they are behind, and moving one."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.group_answers import Group
from headrace.client.group_asker import GroupAsker
from headrace.client.places import PLACES, Move, Partition, Place, moves_to, offsets_of, read_place
from headrace.clock import Clock
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import Reader
from headrace.serve.console.errors import GroupAtWork, PlaceUnknown
from headrace.serve.console.log_topics import bounds_of, first_since
from headrace.serve.errors import NotThere, RequestUnfit

__all__ = ["GroupLooks"]

_MEASURED_MAX = 500
"""Groups, or partitions of one, whose lag is measured; beyond that records are counted only."""
_METERS_MAX = 16
"""The list's among them; the one that was not looked at for longest goes."""
_READERS_S = 30.0


class GroupLooks:
    """For any thread."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asker = GroupAsker(cluster)
        self._lock = threading.Lock()
        self._meters: dict[str | None, LagMeter] = {}
        """A meter forgets the rates of whom it is not asked about: the list has its own, and so has each of the groups
        that were looked at last."""
        self._readers: dict[str, set[str]] = {}
        self._readers_at: float | None = None

    def close(self) -> None:
        with self._lock:
            for meter in self._meters.values():
                meter.close()
        self._asker.close()

    # What there is

    def all(self) -> list[dict[str, Any]]:
        """By name."""
        listed = self._asker.listed()
        names = [*listed]
        committed = self._asker.committed(names)
        described = self._described(names)
        readers = [
            Reader("group", name, "committed", at, committed=False) for name, at in committed.items() if at
        ]
        lags = {one.reader.name: one for one in self._measured(None, readers[:_MEASURED_MAX])}
        return [
            {
                "group": name,
                "state": _word(listed[name][0]),
                "type": _word(listed[name][1]),
                "members": len(described[name].members) if name in described else None,
                "topics": sorted({topic for topic, _ in committed.get(name, {})}),
                **_lag_told(lags.get(name)),
            }
            for name in names
        ]

    def reading(self, topic: str) -> list[str]:
        """Groups that have committed there; all are asked twice a minute only."""
        now = self._clock.steady()
        if self._readers_at is None or now - self._readers_at >= _READERS_S:
            committed = self._asker.committed([*self._asker.listed()])
            self._readers = {name: {one for one, _ in at} for name, at in committed.items()}
            self._readers_at = now
        return [name for name, topics in self._readers.items() if topic in topics]

    def one(self, name: str) -> dict[str, Any]:
        group = self._described([name]).get(name)
        committed = self._asker.committed([name]).get(name, {})
        members = list(group.members) if group else []
        if not members and not committed:
            raise NotThere(
                f"group {name[:100]!r} has neither members nor committed offsets",
                hint="see what there is: GET /v1/log/groups",
            )
        holders = {place: member for member in members for place in member.places}
        places = sorted({*committed, *holders})
        measured = self._measured(
            name,
            [
                Reader("group", name, "committed", {place: committed[place]}, committed=False)
                for place in committed
            ][:_MEASURED_MAX],
        )
        lags = {place: lag for lag in measured for place in lag.reader.at}
        ends = bounds_of(self._cluster, places)
        known = [one for one in lags.values() if one.records is not None]
        losses = [one.loss.in_s for one in known if one.loss is not None and one.loss.in_s is not None]
        return {
            "group": name,
            "state": _word(group.state) if group else "unknown",
            "type": _word(group.type) if group else "unknown",
            "assignor": group.assignor if group else None,
            "lag": sum(_records(lags.get(place), at, ends.get(place)) for place, at in committed.items()),
            "lag_bytes": _sum([one.est_bytes for one in known]),
            "lag_s": _most([one.age_s for one in known]),
            "gone": sum(one.gone for one in lags.values()),
            "time_to_loss_s": min(losses, default=None),
            "members": [
                {
                    "member": one.member_id,
                    "client": one.client_id,
                    "host": one.host,
                    "instance": one.instance_id,
                    "partitions": len(one.places),
                }
                for one in members
            ],
            "partitions": [
                {
                    "topic": place[0],
                    "partition": place[1],
                    "committed": committed.get(place),
                    "start": ends[place].start if place in ends else None,
                    "end": ends[place].end if place in ends else None,
                    **_lag_told(lags.get(place)),
                    "member": holders[place].client_id if place in holders else None,
                    "host": holders[place].host if place in holders else None,
                }
                for place in places
            ],
        }

    # Moving one

    def moves(
        self, name: str, to: str, topic: str | None, partitions: Collection[int] | None
    ) -> tuple[list[Move], list[str]]:
        """What would change, and who is at work."""
        place = read_place(to, self._clock.now_ms())
        if place is None:
            raise PlaceUnknown(f"{to[:60]!r} is not a place in a topic", hint=f"write {PLACES}")
        group = self._described([name]).get(name)
        committed = self._asker.committed([name]).get(name, {})
        bounds = bounds_of(self._cluster, self._wanted(committed, topic, partitions))
        if not bounds:
            raise NotThere(
                f"group {name[:100]!r} has committed nothing in a topic that is there", hint="name a topic"
            )
        targets = self._targets(place, bounds)
        moves = moves_to(targets, committed, bounds)
        for move in moves:
            if not move.fits:
                raise PlaceUnknown(
                    f"offset {move.new} is not in {move.topic} [{move.partition}],"
                    f" which holds {move.bounds.start} to {move.bounds.end}",
                    hint="write start or end, or choose the partitions that have it",
                )
        return moves, sorted({f"{one.client_id} at {one.host}" for one in (group.members if group else ())})

    def seek(self, name: str, moves: Sequence[Move], busy: Sequence[str]) -> None:
        if busy:
            raise GroupAtWork(
                f"group {name!r} has members at work: {', '.join(busy[:5])}",
                hint="stop them first: they would go on where they are, and commit over it",
            )
        self._asker.move(name, [(one.topic, one.partition, one.new) for one in moves])

    def _wanted(
        self, committed: Mapping[Partition, int], topic: str | None, partitions: Collection[int] | None
    ) -> list[Partition]:
        if topic is None:
            if partitions is not None:
                raise RequestUnfit("partitions are of one topic: name it with topic")
            return sorted(committed)
        count = self._cluster.expect_topic(topic).partitions
        absent = next((one for one in partitions or () if one >= count), None)
        if absent is not None:
            raise NotThere(
                f"topic {topic!r} has no partition {absent}", hint=f"it has {count}, counted from 0"
            )
        return [(topic, one) for one in (range(count) if partitions is None else sorted(set(partitions)))]

    def _targets(self, place: Place, bounds: Mapping[Partition, Any]) -> dict[Partition, int]:
        return offsets_of(place, bounds, lambda time_ms: first_since(self._cluster, bounds, time_ms))

    # Asking the log

    def _measured(self, group: str | None, readers: list[Reader]) -> list[Lag]:
        """Of one group, or of all that are listed."""
        if not readers:
            return []
        with self._lock:
            meter = self._meters.pop(group, None) or LagMeter(self._cluster, self._clock)
            self._meters[group] = meter
            if len(self._meters) > _METERS_MAX:
                self._meters.pop(next(iter(self._meters))).close()
            return meter.look(readers)

    def _described(self, names: Sequence[str]) -> Mapping[str, Group]:
        """Without those that are not there."""
        if "" in names:
            raise NotThere("a group has a name", hint="see what there is: GET /v1/log/groups")
        return self._asker.described(names)


def _word(name: str) -> str:
    return name.lower().replace("_", "-")


def _lag_told(lag: Lag | None) -> dict[str, Any]:
    loss = lag.loss if lag else None
    return {
        "lag": lag.records if lag else None,
        "lag_bytes": lag.est_bytes if lag else None,
        "lag_s": _rounded(lag.age_s) if lag else None,
        "gone": lag.gone if lag else 0,
        "time_to_loss_s": _rounded(loss.in_s) if loss else None,
    }


def _records(lag: Lag | None, at: int, bounds: Any) -> int:
    """By its bounds alone where it is one of too many to measure."""
    if lag is not None:
        return lag.records or 0
    return 0 if bounds is None else max(0, bounds.end - max(at, bounds.start))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _sum(values: list[int | None]) -> int | None:
    known = [one for one in values if one is not None]
    return sum(known) if len(known) == len(values) else None


def _most(values: list[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return round(max(known, default=0.0), 3) if len(known) == len(values) else None
