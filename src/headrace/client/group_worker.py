"""The process that asks the coordinators of groups: ``python -m headrace.client.group_worker``.

librdkafka ends its whole process by a failed assertion when a broker is lost while it is asked about a group
(confluentinc/librdkafka#4605, in 2.16.0 still), and by a null pointer when a coordinator moves (#5040). Here that costs
a process that has nothing else to do, and whoever asked starts the next one. It ends with the one that started it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.group_answers import (
    Answer,
    Committed,
    Described,
    Group,
    Job,
    Listed,
    Member,
    Move,
    Question,
    Refused,
)

__all__ = ["AT_ONCE", "main"]

AT_ONCE = 100
"""Groups that are asked about at the same time."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    cluster = Cluster(job.bootstrap, job.properties, job.timeout_s)
    decoder = msgspec.json.Decoder(Question)
    for line in sys.stdin.buffer:
        answer = _answered(cluster, decoder.decode(line))
        sink.write(msgspec.json.encode(answer) + b"\n")
        sink.flush()
        # What the library says by itself, such as a timeout, has a negative number.
        if any(one.retriable or one.code < 0 for one in answer.refused.values()):
            # The client does not let go of a coordinator that was restarted: every further question to it would time
            # out as well.
            cluster = cluster.apart()
    # The client's threads may be in the middle of something, and nobody waits for it.
    os._exit(0)


def _answered(cluster: Cluster, question: Question) -> Answer:
    match question:
        case Listed():
            return _listed(cluster)
        case Committed(groups):
            return _committed(cluster, groups)
        case Described(groups):
            return _described(cluster, groups)
        case Move(group, places):
            return _moved(cluster, group, places)


def _listed(cluster: Cluster) -> Answer:
    """Every broker is asked for its own; one that does not answer makes the list an error, not shorter."""
    try:
        listing = cluster.answer(cluster.admin().list_consumer_groups(request_timeout=cluster.timeout_s))
    except KafkaException as error:
        return Answer(refused={"": Refused.of(error.args[0])})
    for failure in listing.errors:
        told = failure.args[0] if isinstance(failure, KafkaException) else failure
        return Answer(refused={"": Refused.of(told)})
    return Answer(listed={str(one.group_id): (one.state.name, one.type.name) for one in listing.valid})


def _committed(cluster: Cluster, groups: list[str]) -> Answer:
    answer = Answer(committed={}, groups={}, refused={}, unmoved=[])

    def asking(group: str) -> Future[Any]:
        asked = [ConsumerGroupTopicPartitions(group)]
        return cluster.admin().list_consumer_group_offsets(asked, request_timeout=cluster.timeout_s)[group]

    for group, found in _each(cluster, groups, asking, answer.refused):
        answer.committed[group] = sorted(
            (one.topic, one.partition, one.offset) for one in found.topic_partitions if one.offset >= 0
        )
    return answer


def _described(cluster: Cluster, groups: list[str]) -> Answer:
    answer = Answer(committed={}, groups={}, refused={}, unmoved=[])

    def asking(group: str) -> Future[Any]:
        asked = cluster.admin().describe_consumer_groups([group], request_timeout=cluster.timeout_s)
        found: Future[Any] = asked[group]
        return found

    for group, found in _each(cluster, groups, asking, answer.refused):
        members = [
            Member(
                one.member_id,
                one.client_id,
                one.host,
                one.group_instance_id,
                [
                    (place.topic, place.partition)
                    for place in (one.assignment.topic_partitions if one.assignment else ())
                ],
            )
            for one in found.members
        ]
        answer.groups[group] = Group(
            found.state.name, found.type.name, found.partition_assignor or None, members
        )
    return answer


def _moved(cluster: Cluster, group: str, places: list[tuple[str, int, int]]) -> Answer:
    answer = Answer(committed={}, groups={}, refused={}, unmoved=[])

    def asking(group: str) -> Future[Any]:
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(*one) for one in places])]
        return cluster.admin().alter_consumer_group_offsets(asked, request_timeout=cluster.timeout_s)[group]

    for _, found in _each(cluster, [group], asking, answer.refused):
        for one in found.topic_partitions:
            if one.error is not None:
                answer.unmoved.append((one.topic, one.partition, Refused.of(one.error)))
    return answer


def _each(
    cluster: Cluster, groups: list[str], asking: Callable[[str], Future[Any]], refused: dict[str, Refused]
) -> Iterator[tuple[str, Any]]:
    """The client asks for one group at a time, and here for many of them at once."""
    for begin in range(0, len(groups), AT_ONCE):
        futures: dict[str, Future[Any]] = {}
        for group in groups[begin : begin + AT_ONCE]:
            try:
                futures[group] = asking(group)
            except (ValueError, TypeError) as error:
                refused[group] = Refused(KafkaError.INVALID_GROUP_ID, str(error), False)
        for group, future in futures.items():
            try:
                yield group, cluster.answer(future)
            except KafkaException as error:
                refused[group] = Refused.of(error.args[0])


if __name__ == "__main__":
    main()
