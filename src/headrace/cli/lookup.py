"""Questions that several verbs ask of a cluster: which topics, which partitions, where they start and end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.cli.client import cluster_metadata, result_of, translate
from headrace.cli.errors import TopicUnknown, UsageError
from headrace.cli.kafka_admin import OffsetSpec, TopicDescription, at_earliest, at_latest, at_time
from headrace.cli.session import Session
from headrace.client import places
from headrace.client.offset_answer import offset_told
from headrace.client.places import Bounds, Partition, Place

__all__ = [
    "Bounds",
    "Partition",
    "Place",
    "bounds_of",
    "describe_topics",
    "list_topic_names",
    "offsets_of",
    "parse_partitions",
    "partitions_of",
]


def list_topic_names(session: Session, admin: AdminClient) -> list[str]:
    return sorted(cluster_metadata(session, admin).topics)


def matching_topics(session: Session, admin: AdminClient, patterns: Sequence[str]) -> list[str]:
    """Topics whose whole name matches one of the expressions; internal ones only by their very name."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise UsageError(f"{error.pattern!r} is not a regular expression: {error}") from None
    names = list_topic_names(session, admin)
    return [
        name
        for name in names
        if any(one.fullmatch(name) for one in compiled) and (not name.startswith("__") or name in patterns)
    ]


def describe_topics(session: Session, admin: AdminClient, topics: Sequence[str]) -> list[TopicDescription]:
    futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=session.timeout_s)
    return [
        result_of(futures[topic], session, f"describing topic {topic!r}", topic=topic) for topic in topics
    ]


def partitions_of(
    session: Session, admin: AdminClient, topics: Sequence[str], only: Sequence[int] = ()
) -> list[Partition]:
    """The partitions of the topics, or those of them that were asked for."""
    found: list[Partition] = []
    for description in describe_topics(session, admin, topics):
        numbers = [partition.id for partition in description.partitions]
        for wanted in only:
            if wanted not in numbers:
                raise TopicUnknown(description.name, partition=wanted)
        found += [(description.name, number) for number in sorted(numbers) if not only or number in only]
    return found


def parse_partitions(text: str | None) -> list[int]:
    """``0,2,5-7`` as numbers."""
    numbers: list[int] = []
    for item in text.split(",") if text else ():
        first, dash, last = item.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise UsageError(f"{text!r} is not a list of partitions", hint="write 0,2,5-7")
        end = int(last) if dash else int(first)
        if end - int(first) >= 100_000:
            raise UsageError(f"{text!r} names more partitions than any topic has")
        numbers += range(int(first), end + 1)
    return numbers


def _list_offsets(
    session: Session,
    admin: AdminClient,
    specs: Mapping[Partition, OffsetSpec],
    isolation: IsolationLevel,
) -> dict[Partition, int]:
    if not specs:
        return {}
    futures = admin.list_offsets(
        {TopicPartition(topic, number): spec for (topic, number), spec in specs.items()},
        isolation_level=isolation,
        request_timeout=session.timeout_s,
    )
    found: dict[Partition, int] = {}
    for asked, future in futures.items():
        topic, partition = asked.topic, asked.partition
        doing = f"asking for offsets of {topic} [{partition}]"
        answer = result_of(future, session, doing, topic=topic, partition=partition)
        try:
            found[topic, partition] = offset_told(answer)
        except KafkaException as failure:
            raise translate(session, failure.args[0], doing, topic=topic, partition=partition) from None
    return found


def bounds_of(
    session: Session,
    admin: AdminClient,
    partitions: Iterable[Partition],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Partition, Bounds]:
    wanted = list(partitions)
    starts = _list_offsets(session, admin, {one: at_earliest() for one in wanted}, isolation)
    ends = _list_offsets(session, admin, {one: at_latest() for one in wanted}, isolation)
    return {one: Bounds(starts[one], ends[one]) for one in wanted}


def offsets_of(
    session: Session,
    admin: AdminClient,
    place: Place,
    bounds: Mapping[Partition, Bounds],
) -> dict[Partition, int]:
    """Where a place is in each partition. An exact offset is returned as it is, in range or not."""

    def first_since(time_ms: int) -> dict[Partition, int]:
        specs = {one: at_time(time_ms) for one in bounds}
        return _list_offsets(session, admin, specs, IsolationLevel.READ_UNCOMMITTED)

    return places.offsets_of(place, bounds, first_since)
