"""Requests of the command line to the log, through ``headrace.client``.

Only this module translates Kafka's errors into errors of the command line, with exit codes and hints. It works the same
with Headrace's broker and with Apache Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from headrace.cli.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CliError,
    GroupActive,
    GroupUnknown,
    TopicExists,
    TopicUnknown,
    UsageError,
)
from headrace.cli.reach import why_unreachable
from headrace.cli.session import Session
from headrace.client import offset_spec
from headrace.client.cluster import listed_offset
from headrace.client.errors import LogError
from headrace.client.offset_spec import Bounds, Partition

__all__ = [
    "AlterConfigOpType",
    "Bounds",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "NewPartitions",
    "NewTopic",
    "Partition",
    "ResourceType",
    "bounds_of",
    "cluster_metadata",
    "describe_topics",
    "matching_topics",
    "offsets_of",
    "parse_partitions",
    "partitions_of",
    "result_of",
    "translate",
    "translate_log_error",
]

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
}
_ACTIVE = {KafkaError.NON_EMPTY_GROUP, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID}
_HINTS = {
    KafkaError._AUTHENTICATION: "check sasl.mechanism, sasl.username and sasl.password (-X)",
    KafkaError._SSL: "check security.protocol and ssl.ca.location (-X)",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "ask the cluster's administrator for access to the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "ask the cluster's administrator for access to the group",
    KafkaError.INVALID_REPLICATION_FACTOR: "the cluster has fewer brokers than replicas requested: lower -r",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes and pass -X message.max.bytes=N",
    KafkaError.POLICY_VIOLATION: "a policy of the cluster forbids this request",
}


# Errors


def translate(
    session: Session,
    error: KafkaError,
    operation: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    group: str | None = None,
) -> CliError:
    """Translate an error of the broker or of librdkafka. ``operation`` names the failed operation."""
    code = error.code()
    if code in _UNREACHABLE:
        return _unreachable(session, error, operation)
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC) and topic is not None:
        return TopicUnknown(topic, partition=partition)
    if code == KafkaError._UNKNOWN_PARTITION and topic is not None:
        return TopicUnknown(topic, partition=-1 if partition is None else partition)
    if code == KafkaError.TOPIC_ALREADY_EXISTS and topic is not None:
        return TopicExists(topic)
    if code == KafkaError.GROUP_ID_NOT_FOUND and group is not None:
        return GroupUnknown(group)
    if code in _ACTIVE and group is not None:
        return GroupActive(
            f"{operation}: the group has active members",
            detail=error.str(),
            hint=f"stop them first; list them with: headrace group describe {group}",
        )
    return BrokerRefused(
        f"{operation}: {error.str()}",
        name=error.name().lstrip("_"),
        hint=_HINTS.get(code, ""),
        retriable=error.retriable(),
    )


def translate_log_error(
    session: Session, error: LogError, operation: str, *, group: str | None = None
) -> CliError | LogError:
    """Like ``translate``, for an error that ``headrace.client`` raised."""
    if error.kafka_error is None:
        return error
    return translate(session, error.kafka_error, operation, group=group)


def _unreachable(session: Session, error: KafkaError, operation: str) -> CliError:
    """Return an error that names the cause: an advertised address fails, or the broker does not respond."""
    from headrace.cli.raw_request import advertised_brokers

    failures = []
    for host, port in advertised_brokers(session):
        reason = why_unreachable(host, port)
        if reason is not None:
            failures.append(f"{host}:{port}: {reason}")
    if failures:
        return BrokerUnreachable(
            f"{operation}: {session.bootstrap} responds, but the brokers it advertises do not",
            detail="; ".join(failures),
            hint="the broker advertises an address that does not work: see headrace broker --advertise",
        )
    return BrokerUnreachable(
        f"{operation}: no response from {session.bootstrap}",
        detail=error.str(),
        hint="check that it is a Kafka broker, and whether it needs TLS or a login (-X security.protocol=…);"
        " -v shows the client's log",
    )


def result_of(
    future: Future[Any],
    session: Session,
    operation: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
) -> Any:
    """Wait for the response of an admin request."""
    try:
        return session.cluster().wait_for(future)
    except KafkaException as failure:
        raise translate(session, failure.args[0], operation, topic=topic, partition=partition) from None


# Topics and partitions


def cluster_metadata(session: Session, timeout_s: float | None = None) -> ClusterMetadata:
    """Return all brokers and topics."""
    try:
        return session.cluster().metadata(timeout_s)
    except KafkaException as failure:
        raise translate(session, failure.args[0], "listing topics") from None


def matching_topics(session: Session, patterns: Sequence[str]) -> list[str]:
    """Return topics whose whole name matches a pattern. An internal topic must be named exactly."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise UsageError(f"{error.pattern!r} is not a regular expression: {error}") from None
    return [
        name
        for name in sorted(cluster_metadata(session).topics)
        if any(pattern.fullmatch(name) for pattern in compiled)
        and (not name.startswith("__") or name in patterns)
    ]


def describe_topics(session: Session, topics: Sequence[str]) -> list[TopicDescription]:
    if "" in topics:
        raise UsageError("a topic name must not be empty", hint="headrace topic list shows the topics")
    futures = [(topic, session.cluster().describe_topic(topic)) for topic in topics]
    return [
        result_of(future, session, f"describing topic {topic!r}", topic=topic) for topic, future in futures
    ]


def partitions_of(session: Session, topics: Sequence[str], only: Sequence[int] = ()) -> list[Partition]:
    """Return the partitions of the topics. ``only`` selects partitions by number; they must exist in every topic."""
    partitions: list[Partition] = []
    for description in describe_topics(session, topics):
        numbers = [partition.id for partition in description.partitions]
        for wanted in only:
            if wanted not in numbers:
                raise TopicUnknown(description.name, partition=wanted)
        partitions += [(description.name, number) for number in sorted(numbers) if not only or number in only]
    return partitions


def parse_partitions(text: str | None) -> list[int]:
    """Parse ``0,2,5-7``."""
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


# Offsets


def _list_offsets(
    session: Session, specs: Mapping[Partition, OffsetSpec], isolation: IsolationLevel
) -> dict[Partition, int]:
    if not specs:
        return {}
    futures = (
        session.cluster()
        .admin()
        .list_offsets(
            {TopicPartition(topic, number): spec for (topic, number), spec in specs.items()},
            isolation_level=isolation,
            request_timeout=session.timeout_s,
        )
    )
    offsets: dict[Partition, int] = {}
    for partition, future in futures.items():
        topic, number = partition.topic, partition.partition
        operation = f"listing offsets of {topic} [{number}]"
        result = result_of(future, session, operation, topic=topic, partition=number)
        try:
            offsets[topic, number] = listed_offset(result)
        except KafkaException as failure:
            raise translate(session, failure.args[0], operation, topic=topic, partition=number) from None
    return offsets


def bounds_of(
    session: Session,
    partitions: Iterable[Partition],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[Partition, Bounds]:
    wanted = list(partitions)
    earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    starts = _list_offsets(session, dict.fromkeys(wanted, earliest), isolation)
    ends = _list_offsets(session, dict.fromkeys(wanted, latest), isolation)
    return {partition: Bounds(starts[partition], ends[partition]) for partition in wanted}


def offsets_of(
    session: Session, spec: offset_spec.OffsetSpec, bounds: Mapping[Partition, Bounds]
) -> dict[Partition, int]:
    """Resolve ``spec`` to an offset in each partition. An exact offset is returned even if it is out of range."""

    def first_since(time_ms: int) -> dict[Partition, int]:
        specs = dict.fromkeys(bounds, OffsetSpec.for_timestamp(time_ms))
        return _list_offsets(session, specs, IsolationLevel.READ_UNCOMMITTED)

    return offset_spec.resolve_offsets(spec, bounds, first_since)
