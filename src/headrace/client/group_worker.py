"""The worker process of ``GroupAdminProcess``: ``python -m headrace.client.group_worker``.

librdkafka aborts with a failed assertion when it loses a broker during a request about a group
(confluentinc/librdkafka#4605, still in 2.16.0). It also dereferences a null pointer when a coordinator moves while it
fetches offsets (#5040). Here, only this worker process crashes. The worker exits when its parent exits.
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
from headrace.client.group_admin import (
    CONCURRENT_GROUPS,
    AlterOffsets,
    DeleteGroups,
    DescribeGroups,
    FetchOffsets,
    Group,
    GroupError,
    GroupRequest,
    GroupResponse,
    ListGroups,
    Member,
    WorkerConfig,
)

__all__ = ["main"]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerConfig)
    cluster = Cluster(config.bootstrap, config.properties, config.timeout_s)
    decoder = msgspec.json.Decoder(GroupRequest)
    for line in sys.stdin.buffer:
        response = _respond(cluster, decoder.decode(line))
        responses.write(msgspec.json.encode(response) + b"\n")
        responses.flush()
        # Errors from librdkafka itself, such as a timeout, have negative codes.
        if any(error.retriable or error.code < 0 for error in response.errors.values()):
            # librdkafka continues to use the coordinator from before its restart, so every later request
            # would time out. A new admin client does not.
            cluster = cluster.with_own_admin()
    # Exit without waiting for librdkafka's threads.
    os._exit(0)


def _respond(cluster: Cluster, request: GroupRequest) -> GroupResponse:
    match request:
        case ListGroups():
            return _list(cluster)
        case FetchOffsets(groups):
            return _fetch_offsets(cluster, groups)
        case DescribeGroups(groups):
            return _describe(cluster, groups)
        case AlterOffsets(group, offsets):
            return _alter_offsets(cluster, group, offsets)
        case DeleteGroups(groups):
            return _delete(cluster, groups)


def _list(cluster: Cluster) -> GroupResponse:
    """List the groups of all brokers. If one broker does not respond, return an error instead of a shorter list."""
    try:
        listing = cluster.wait_for(cluster.admin().list_consumer_groups(request_timeout=cluster.timeout_s))
    except KafkaException as error:
        return GroupResponse(errors={"": GroupError.of(error.args[0])})
    for failure in listing.errors:
        cause = failure.args[0] if isinstance(failure, KafkaException) else failure
        return GroupResponse(errors={"": GroupError.of(cause)})
    return GroupResponse(
        listed={str(group.group_id): (group.state.name, group.type.name) for group in listing.valid}
    )


def _fetch_offsets(cluster: Cluster, groups: list[str]) -> GroupResponse:
    response = _empty_response()

    def fetch(group: str) -> Future[Any]:
        group_partitions = [ConsumerGroupTopicPartitions(group)]
        return cluster.admin().list_consumer_group_offsets(
            group_partitions, request_timeout=cluster.timeout_s
        )[group]

    for group, result in _each(cluster, groups, fetch, response.errors):
        response.committed[group] = sorted(
            (committed.topic, committed.partition, committed.offset)
            for committed in result.topic_partitions
            if committed.offset >= 0
        )
    return response


def _describe(cluster: Cluster, groups: list[str]) -> GroupResponse:
    response = _empty_response()

    def describe(group: str) -> Future[Any]:
        futures = cluster.admin().describe_consumer_groups([group], request_timeout=cluster.timeout_s)
        future: Future[Any] = futures[group]
        return future

    for group, result in _each(cluster, groups, describe, response.errors):
        members = [
            Member(
                member.member_id,
                member.client_id,
                member.host,
                member.group_instance_id,
                [
                    (assigned.topic, assigned.partition)
                    for assigned in (member.assignment.topic_partitions if member.assignment else ())
                ],
            )
            for member in result.members
        ]
        response.groups[group] = Group(
            result.state.name,
            result.type.name,
            result.partition_assignor or None,
            members,
            None if result.coordinator is None else result.coordinator.id,
        )
    return response


def _alter_offsets(cluster: Cluster, group: str, offsets: list[tuple[str, int, int]]) -> GroupResponse:
    response = _empty_response()

    def alter(group: str) -> Future[Any]:
        group_partitions = [
            ConsumerGroupTopicPartitions(group, [TopicPartition(*offset) for offset in offsets])
        ]
        return cluster.admin().alter_consumer_group_offsets(
            group_partitions, request_timeout=cluster.timeout_s
        )[group]

    for _, result in _each(cluster, [group], alter, response.errors):
        for altered in result.topic_partitions:
            if altered.error is not None:
                response.unaltered.append((altered.topic, altered.partition, GroupError.of(altered.error)))
    return response


def _delete(cluster: Cluster, groups: list[str]) -> GroupResponse:
    response = _empty_response()

    def delete(group: str) -> Future[Any]:
        futures = cluster.admin().delete_consumer_groups([group], request_timeout=cluster.timeout_s)
        future: Future[Any] = futures[group]
        return future

    for _ in _each(cluster, groups, delete, response.errors):
        pass
    return response


def _empty_response() -> GroupResponse:
    return GroupResponse(committed={}, groups={}, errors={}, unaltered=[])


def _each(
    cluster: Cluster, groups: list[str], send: Callable[[str], Future[Any]], errors: dict[str, GroupError]
) -> Iterator[tuple[str, Any]]:
    """Send one request per group, up to 100 at a time. Yield the results, and add the failures to ``errors``."""
    for begin in range(0, len(groups), CONCURRENT_GROUPS):
        futures: dict[str, Future[Any]] = {}
        for group in groups[begin : begin + CONCURRENT_GROUPS]:
            try:
                futures[group] = send(group)
            except (ValueError, TypeError) as error:
                errors[group] = GroupError(KafkaError.INVALID_GROUP_ID, str(error), False)
        for group, future in futures.items():
            try:
                yield group, cluster.wait_for(future)
            except KafkaException as error:
                errors[group] = GroupError.of(error.args[0])


if __name__ == "__main__":
    main()
