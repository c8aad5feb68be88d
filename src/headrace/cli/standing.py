"""How far groups have come: committed offsets beside the log's own bounds.

Lag is what a group still has to read. What it had not read when retention took it is *gone* and said apart:
it will never be read, and a lag that silently shrank would hide that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.cli.client import group_answer, open_consumer, result_of, translate
from headrace.cli.errors import CliError, GroupUnknown, TopicUnknown
from headrace.cli.kafka_admin import ConsumerGroupDescription, ConsumerGroupListing
from headrace.cli.lookup import Bounds, Partition, bounds_of
from headrace.cli.session import Session

__all__ = ["Standing", "age_of_next", "committed_of", "describe_group", "list_groups", "standings"]

_AGE_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Standing:
    """One group at one partition. ``committed`` is None where it reads without having committed yet."""

    group: str
    topic: str
    partition: int
    committed: int | None
    bounds: Bounds | None
    """None if the topic is no longer there."""

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.bounds is None:
            return None
        return max(0, self.bounds.end - max(self.committed, self.bounds.start))

    @property
    def gone(self) -> int:
        """Records that were deleted before the group read them."""
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


def list_groups(
    session: Session, admin: AdminClient, states: Collection[ConsumerGroupState] = ()
) -> list[ConsumerGroupListing]:
    """By name. Every broker is asked for its own; one that does not answer makes the list an error, not shorter."""
    future = admin.list_consumer_groups(states=set(states), request_timeout=session.timeout_s)
    listing = result_of(future, session, "listing groups")
    for failure in listing.errors:
        error = failure.args[0] if isinstance(failure, KafkaException) else failure
        raise translate(session, error, "listing groups")
    return sorted(listing.valid, key=lambda group: str(group.group_id))


def describe_group(session: Session, admin: AdminClient, group: str) -> ConsumerGroupDescription:
    found: ConsumerGroupDescription = group_answer(
        lambda: admin.describe_consumer_groups([group], request_timeout=session.timeout_s)[group],
        session,
        f"describing group {group!r}",
        group=group,
    )
    return found


def committed_of(
    session: Session, admin: AdminClient, groups: Sequence[str]
) -> dict[str, dict[Partition, int]]:
    """Each group's committed offsets; the client asks for one group at a time, all of them at once."""
    _expect_coordinators(session, admin, groups)

    def asking(group: str) -> Future[Any]:
        asked = [ConsumerGroupTopicPartitions(group)]
        return admin.list_consumer_group_offsets(asked, request_timeout=session.timeout_s)[group]

    futures = {group: asking(group) for group in groups}
    found: dict[str, dict[Partition, int]] = {}
    for group, future in futures.items():
        doing = f"asking for the offsets of group {group!r}"
        answer = group_answer(partial(asking, group), session, doing, group=group, first=future)
        found[group] = {
            (one.topic, one.partition): one.offset
            for one in sorted(answer.topic_partitions, key=lambda one: (one.topic, one.partition))
            if one.offset >= 0
        }
    return found


def _expect_coordinators(session: Session, admin: AdminClient, groups: Sequence[str]) -> None:
    """Until each group's has answered. librdkafka reads through a null pointer where one that is asked for offsets says
    that it is none (confluentinc/librdkafka#5040), as on a cluster that has had no groups; not so where it describes.
    """

    def asking(group: str) -> Future[Any]:
        found: Future[Any] = admin.describe_consumer_groups([group], request_timeout=session.timeout_s)[group]
        return found

    futures = {group: asking(group) for group in groups}
    for group, future in futures.items():
        doing = f"asking for the coordinator of group {group!r}"
        with contextlib.suppress(GroupUnknown):
            group_answer(partial(asking, group), session, doing, group=group, first=future)


def _bounds_where_there(
    session: Session, admin: AdminClient, partitions: Iterable[Partition]
) -> dict[Partition, Bounds]:
    """All at once; if a topic is gone, topic by topic, without those that are."""
    wanted = sorted(set(partitions))
    try:
        return bounds_of(session, admin, wanted)
    except TopicUnknown:
        found: dict[Partition, Bounds] = {}
        for topic in sorted({name for name, _ in wanted}):
            try:
                found |= bounds_of(session, admin, [one for one in wanted if one[0] == topic])
            except TopicUnknown:
                continue
        return found


def standings(
    session: Session,
    admin: AdminClient,
    groups: Sequence[str],
    *,
    assigned: Mapping[str, Iterable[Partition]] | None = None,
) -> list[Standing]:
    """Where the groups stand, at every partition with a commit or, if told, an assigned member."""
    committed = committed_of(session, admin, groups)
    places = {
        group: dict.fromkeys([*offsets, *(assigned or {}).get(group, ())])
        for group, offsets in committed.items()
    }
    bounds = _bounds_where_there(session, admin, [one for group in places.values() for one in group])
    return [
        Standing(
            group, topic, partition, committed[group].get((topic, partition)), bounds.get((topic, partition))
        )
        for group, partitions in places.items()
        for topic, partition in sorted(partitions)
    ]


def age_of_next(session: Session, found: Iterable[Standing], now_ms: int) -> dict[Standing, float | None]:
    """Seconds since the oldest record that a group has yet to read was written; 0 if it has read them all.

    It takes reading that one record per partition, group by group. What has not come within two seconds is None.
    """
    ages: dict[Standing, float | None] = {one: 0.0 if one.lag == 0 else None for one in found}
    groups: dict[str, dict[Partition, Standing]] = {}
    for one in ages:
        if one.lag:
            groups.setdefault(one.group, {})[one.topic, one.partition] = one
    if not groups:
        return ages
    consumer = open_consumer(
        session,
        {
            "group.id": "headrace-age",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "max.partition.fetch.bytes": 1_024,
            "queued.min.messages": 1,
            "fetch.wait.max.ms": 50,
        },
    )
    try:
        for behind in groups.values():
            for place, stamp in _stamps_of_next(consumer, behind).items():
                ages[behind[place]] = max(0, now_ms - stamp) / 1_000
    finally:
        consumer.close()
    return ages


def _stamps_of_next(consumer: Consumer, behind: Mapping[Partition, Standing]) -> dict[Partition, int]:
    consumer.assign([one.next_to_read() for one in behind.values()])
    stamps: dict[Partition, int] = {}
    while len(stamps) < len(behind):
        message: Any = consumer.poll(_AGE_WAIT_S)
        if message is None:
            break
        if message.error() is not None:
            raise CliError(f"reading the next record failed: {message.error().str()}")
        kind, stamp = message.timestamp()
        if kind:
            stamps.setdefault((message.topic(), message.partition()), stamp)
    return stamps
