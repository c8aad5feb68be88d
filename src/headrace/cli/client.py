"""Kafka clients for a session, quiet and with errors that a person can act on.

This is the only place of the command line where confluent-kafka is configured, and its errors become ours.
Nothing here knows whether the broker is our own or Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

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
from headrace.cli.kafka_admin import ClusterMetadata
from headrace.cli.reach import check_reachable, why_unreachable
from headrace.cli.session import Session
from headrace.clock import SystemClock

__all__ = [
    "cluster_metadata",
    "group_answer",
    "open_admin",
    "open_consumer",
    "open_producer",
    "result_of",
    "translate",
]

_LOG_NOTHING = 0
_LOG_INFO = 6

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
}
_ACTIVE = {KafkaError.NON_EMPTY_GROUP, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID}
_GETTING_READY = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_HINTS = {
    KafkaError._AUTHENTICATION: "check sasl.mechanism, sasl.username and sasl.password (-X)",
    KafkaError._SSL: "check security.protocol and ssl.ca.location (-X)",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "ask whoever runs the cluster for access to the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "ask whoever runs the cluster for access to the group",
    KafkaError.INVALID_REPLICATION_FACTOR: "there are fewer brokers than copies asked for: lower -r",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes and pass -X message.max.bytes=N",
    KafkaError.POLICY_VIOLATION: "the cluster has a rule against it",
}

_AGAIN_S = 0.1
_GRACE_S = 1.0
"""The client gives up by itself; this is how much longer we wait for it to say so."""
_R = TypeVar("_R")
_ADMINS: list[AdminClient] = []
"""Held until the process ends: an answer is handed over in a thread of the client's own, and a client that is taken
apart while that thread is on its way out has ended a command with a segmentation fault after its work was done."""


def _config(session: Session, extra: Mapping[str, object]) -> dict[str, Any]:
    base: dict[str, Any] = {
        "bootstrap.servers": session.bootstrap,
        "client.id": "headrace",
        "log_level": _LOG_INFO if session.verbose else _LOG_NOTHING,
        "socket.connection.setup.timeout.ms": 5_000,
        **extra,
    }
    return {**base, **session.properties}


def _open(kind: Callable[[dict[str, Any]], _R], session: Session, extra: Mapping[str, object]) -> _R:
    check_reachable(session.bootstrap)
    try:
        return kind(_config(session, extra))
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise UsageError(
            f"a client property does not fit: {reason}",
            hint="the names after -X are those of librdkafka's configuration",
        ) from None


def open_admin(session: Session) -> AdminClient:
    admin = _open(AdminClient, session, {})
    _ADMINS.append(admin)
    return admin


def open_producer(session: Session, extra: Mapping[str, object]) -> Producer:
    return _open(Producer, session, extra)


def open_consumer(session: Session, extra: Mapping[str, object]) -> Consumer:
    return _open(Consumer, session, extra)


def _reason(failure: KafkaException | TimeoutError) -> KafkaError:
    if isinstance(failure, KafkaException):
        error: KafkaError = failure.args[0]
        return error
    return KafkaError(KafkaError._TIMED_OUT)


def cluster_metadata(session: Session, admin: AdminClient, timeout_s: float | None = None) -> ClusterMetadata:
    """All brokers and topics.

    The first question is a small one: until it is answered, the client knows the broker only by the address
    it was given, and gives that connection up, with whatever is under way on it, as soon as it learns the
    broker's own.
    """
    steady = SystemClock().steady
    wait_s = session.timeout_s if timeout_s is None else timeout_s
    deadline = steady() + wait_s
    while True:
        try:
            admin.describe_cluster(request_timeout=wait_s).result(timeout=wait_s + _GRACE_S)
            return admin.list_topics(timeout=max(0.1, deadline - steady()))
        except (KafkaException, TimeoutError) as failure:
            error = _reason(failure)
            if error.code() != KafkaError._TRANSPORT or steady() >= deadline:
                raise translate(session, error, "asking for topics") from None


def _unreachable(session: Session, error: KafkaError, doing: str) -> CliError:
    """The first address took our connection; so which part is silent, and where would the client go next?"""
    from headrace.cli.ask import advertised_brokers

    advertised = []
    for host, port in advertised_brokers(session):
        reason = why_unreachable(host, port)
        if reason is not None:
            advertised.append(f"{host}:{port}: {reason}")
    if advertised:
        return BrokerUnreachable(
            f"{doing}: {session.bootstrap} answers, but the brokers it names do not",
            detail="; ".join(advertised),
            hint="the broker tells clients an address that does not work: see headrace broker --advertise",
        )
    return BrokerUnreachable(
        f"{doing}: no answer from {session.bootstrap}",
        detail=error.str(),
        hint="is it a Kafka broker? Does it want TLS or a login (-X security.protocol=…)? -v shows more",
    )


def translate(
    session: Session,
    error: KafkaError,
    doing: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    group: str | None = None,
) -> CliError:
    """The broker's or the client's error in our terms; ``doing`` says what was tried."""
    code = error.code()
    if code in _UNREACHABLE:
        return _unreachable(session, error, doing)
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
            f"{doing}: the group's members are at work",
            detail=error.str(),
            hint=f"stop them first; see who they are with: headrace group describe {group}",
        )
    return BrokerRefused(
        f"{doing}: {error.str()}",
        name=error.name().lstrip("_"),
        hint=_HINTS.get(code, ""),
        retriable=error.retriable(),
    )


def group_answer(
    ask: Callable[[], Future[Any]],
    session: Session,
    doing: str,
    *,
    group: str,
    first: Future[Any] | None = None,
) -> Any:
    """As ``result_of``, asking again while the broker that looks after the group is still getting ready.

    ``first`` is a question that has been asked already, together with others.
    """
    clock = SystemClock()
    deadline = clock.steady() + session.timeout_s
    future = first or ask()
    while True:
        try:
            return future.result(timeout=session.timeout_s + _GRACE_S)
        except (KafkaException, TimeoutError) as failure:
            error = _reason(failure)
            if error.code() not in _GETTING_READY or clock.steady() >= deadline:
                raise translate(session, error, doing, group=group) from None
        time.sleep(_AGAIN_S)
        future = ask()


def result_of(
    future: Future[Any],
    session: Session,
    doing: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    group: str | None = None,
) -> Any:
    """Wait for what the broker says."""
    try:
        return future.result(timeout=session.timeout_s + _GRACE_S)
    except (KafkaException, TimeoutError) as failure:
        raise translate(
            session, _reason(failure), doing, topic=topic, partition=partition, group=group
        ) from None
