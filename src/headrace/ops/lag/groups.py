"""The consumer groups that read topics of an app.

A cluster may have many others: which ones read these topics is asked of all of them once a minute, and in between only
those are asked that did.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.clock import Clock
from headrace.ops.lag.reader import Partition, Reader

__all__ = ["Groups"]

_SWEEP_S = 60.0
_AT_ONCE = 100
# Deleted since it was listed, or somebody else's: then its topics are as well.
_NOT_OURS = {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED}


class Groups:
    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster.apart()
        self._clock = clock
        self._swept_s: float | None = None
        self._reading: list[str] = []

    def readers(self, topics: Collection[str]) -> list[Reader]:
        """In the order of their names; only their commits in these topics."""
        try:
            return self._readers(topics)
        except (LogError, TimeoutError):
            # The client does not let go of a coordinator that was restarted: every further question to it would time
            # out as well, so the next look has a new client.
            self._cluster = self._cluster.apart()
            raise

    def _readers(self, topics: Collection[str]) -> list[Reader]:
        now_s = self._clock.steady()
        due = self._swept_s is None or now_s - self._swept_s >= _SWEEP_S
        names = self._all() if due else self._reading
        found = []
        for begin in range(0, len(names), _AT_ONCE):
            for name, at in self._committed(names[begin : begin + _AT_ONCE]).items():
                here = {place: offset for place, offset in at.items() if place[0] in topics}
                if here:
                    found.append(Reader("group", name, "committed", here, committed=False))
        self._reading = [one.name for one in found]
        if due:
            self._swept_s = now_s
        return found

    def _all(self) -> list[str]:
        cluster = self._cluster
        try:
            asked = cluster.admin().list_consumer_groups(request_timeout=cluster.timeout_s)
            listing = cluster.answer(asked)
        except KafkaException as error:
            raise from_kafka(error, "listing groups") from error
        for failure in listing.errors:
            raise from_kafka(failure, "listing groups")
        return sorted(str(one.group_id) for one in listing.valid)

    def _committed(self, groups: Sequence[str]) -> dict[str, dict[Partition, int]]:
        """The client asks for one group at a time, and here for many of them at once."""
        cluster = self._cluster
        asked = {
            group: cluster.admin().list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=cluster.timeout_s
            )[group]
            for group in groups
        }
        found: dict[str, dict[Partition, int]] = {}
        for group, future in asked.items():
            try:
                answer = cluster.answer(future)
            except KafkaException as error:
                if error.args[0].code() in _NOT_OURS:
                    continue
                raise from_kafka(error, f"asking for the offsets of group {group!r}") from error
            found[group] = {
                (one.topic, one.partition): one.offset
                for one in sorted(answer.topic_partitions, key=lambda one: (one.topic, one.partition))
                if one.offset >= 0
            }
        return found
