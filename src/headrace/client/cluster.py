"""Creates the Kafka clients of one cluster with a common configuration, and sends the requests about topics.

Flows, followers, the server and the command line access the log through ``Cluster``. Requests about consumer groups are
in ``group_admin``, because they can crash librdkafka.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from headrace.client.errors import LogError, MissingTopic, from_kafka
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        ClusterMetadata,
        ListOffsetsResultInfo,
        TopicDescription,
    )

__all__ = ["Cluster", "TopicInfo", "listed_offset"]

_GRACE_S = 5.0
_PAUSE_S = 0.05
_REFRESH_MS = 2_000
_PROPAGATION_S = 30.0
"""Seconds until all brokers of a cluster know a new topic. For this long after ``ensure_topic``, the response
"unknown topic" may only mean that the broker does not know the topic yet. librdkafka's producers wait equally
long.
"""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
_NO_LEADER = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,
}


_Client = TypeVar("_Client")
_Shared = TypeVar("_Shared")


def listed_offset(result: ListOffsetsResultInfo) -> int:
    """Return the offset of a response; raises ``KafkaException`` if the offset is invalid.

    If librdkafka 2.x loses the broker during the response, it may report an invalid offset instead of an error.
    """
    if result.offset == OFFSET_INVALID:
        raise KafkaException(
            KafkaError(
                KafkaError.LEADER_NOT_AVAILABLE, "the connection to the broker was lost during the response"
            )
        )
    return result.offset


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: str
    partitions: int
    replicas: int = 1


@dataclass(slots=True)
class Cluster:
    """Creates clients on demand. All threads share one admin client."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    """How many seconds to wait for a response."""
    replication: int = -1
    """Replication factor of new topics; -1 for the cluster's default."""
    _admin: AdminClient | None = field(default=None, repr=False)
    _admin_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _ensured: dict[str, float] = field(default_factory=dict, repr=False)
    """When ``ensure_topic`` last created or found each topic (monotonic time). Entries expire after
    ``_PROPAGATION_S``.
    """
    _shared: dict[object, Any] = field(default_factory=dict, repr=False)
    _shared_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def shared(self, key: object, create: Callable[[], _Shared]) -> _Shared:
        """Return the object that all users of this connection share; create it at the first call."""
        with self._shared_lock:
            if key not in self._shared:
                self._shared[key] = create()
            found: _Shared = self._shared[key]
            return found

    def config(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        base: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "client.id": "headrace",
            "log_level": 0,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
        }
        return {**base, **extra, **self.properties}

    def admin(self) -> AdminClient:
        with self._admin_lock:
            if self._admin is None:
                # By default, librdkafka continues to use a lost leader for five minutes, and every request times out.
                self._admin = self._create(AdminClient, {"topic.metadata.refresh.interval.ms": _REFRESH_MS})
            return self._admin

    def with_own_admin(self) -> Cluster:
        """Return the same cluster with a separate admin client."""
        return replace(self, _admin=None, _admin_lock=threading.Lock())

    def producer(self, extra: Mapping[str, Any] | None = None) -> Producer:
        # Use the default partitioner of Java clients, so that every client writes a key to the same partition.
        return self._create(Producer, {"partitioner": "murmur2_random", **(extra or {})})

    def consumer(self, extra: Mapping[str, Any] | None = None) -> Consumer:
        """Create a consumer for manual assignment. Headrace stores positions with the derived data, not in a consumer
        group.
        """
        defaults = {
            "group.id": "headrace",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
            "allow.auto.create.topics": False,
        }
        return self._create(Consumer, {**defaults, **(extra or {})})

    def _create(self, kind: Callable[[dict[str, Any]], _Client], extra: Mapping[str, Any]) -> _Client:
        try:
            return kind(self.config(extra))
        except (KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise ConfigError(
                f"invalid Kafka client property: {reason}",
                hint="use the property names of librdkafka",
            ) from error

    def metadata(self, timeout_s: float | None = None) -> ClusterMetadata:
        """Return all brokers and topics.

        The first response gives librdkafka the broker's advertised address. librdkafka then drops the connection to the
        bootstrap address with all pending requests. So a small request is sent first.
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + wait_s
        while True:
            try:
                self.wait_for(self.admin().describe_cluster(request_timeout=wait_s), timeout_s=wait_s)
                return self.admin().list_topics(timeout=max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                if error.args[0].code() != KafkaError._TRANSPORT or time.monotonic() >= deadline:
                    raise

    def describe_topic(self, name: str) -> Future[TopicDescription]:
        described = self.admin().describe_topics(TopicCollection([name]), request_timeout=self.timeout_s)
        future: Future[TopicDescription] = described[name]
        return future

    def topic(self, name: str) -> TopicInfo | None:
        # For an invalid topic name, librdkafka would truncate the name or raise a different error.
        if not _NAME.fullmatch(name):
            return None
        while (topic_info := self._describe(name)) is None and self._is_propagating(name):
            time.sleep(_PAUSE_S)
        return topic_info

    def _describe(self, name: str) -> TopicInfo | None:
        try:
            described = self.wait_for(self.describe_topic(name))
        except KafkaException as error:
            if error.args[0].code() in _NO_TOPIC:
                return None
            raise from_kafka(error, f"describing topic {name!r}") from error
        copies = max((len(partition.replicas) for partition in described.partitions), default=0)
        return TopicInfo(name, str(described.topic_id), len(described.partitions), copies)

    def expect_topic(self, name: str) -> TopicInfo:
        topic_info = self.topic(name)
        if topic_info is None:
            raise MissingTopic(name)
        return topic_info

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        while True:
            futures = self.admin().describe_configs([resource], request_timeout=self.timeout_s)
            try:
                return {name: entry.value for name, entry in self.wait_for(futures[resource]).items()}
            except KafkaException as error:
                if error.args[0].code() not in _NO_TOPIC or not self._is_propagating(topic):
                    raise from_kafka(
                        error, f"describing the configs of topic {topic!r}", topic=topic
                    ) from error
            time.sleep(_PAUSE_S)

    def ensure_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> TopicInfo:
        """Create the topic unless it exists; never alter an existing one."""
        topic_info = self.topic(name)
        if topic_info is not None:
            self._note_ensured(name)
            return topic_info
        new = NewTopic(
            name, num_partitions=partitions, replication_factor=self.replication, config=dict(configs or {})
        )
        try:
            self.wait_for(self.admin().create_topics([new], request_timeout=self.timeout_s)[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise from_kafka(error, f"creating topic {name!r}") from error
        self._note_ensured(name)
        # Apache Kafka responds when the topic is created, but even a single broker may list it only later.
        deadline = time.monotonic() + self.timeout_s
        while (topic_info := self.topic(name)) is None and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        if topic_info is None:
            raise LogError(
                f"topic {name!r} was created, but no broker lists it",
                name="UNKNOWN_TOPIC_OR_PART",
                retriable=True,
            )
        return topic_info

    def delete_topic(self, name: str) -> None:
        """Delete the topic if it exists."""
        deleted = self.admin().delete_topics([name], operation_timeout=self.timeout_s)
        try:
            self.wait_for(deleted[name])
        except KafkaException as error:
            if error.args[0].code() not in _NO_TOPIC:
                raise from_kafka(error, f"deleting topic {name!r}") from error
        self._ensured.pop(name, None)

    def _note_ensured(self, name: str) -> None:
        now = time.monotonic()
        expired = [topic for topic, at in self._ensured.items() if now > at + _PROPAGATION_S]
        for topic in expired:
            self._ensured.pop(topic, None)
        self._ensured[name] = now

    def _is_propagating(self, name: str) -> bool:
        """Whether the topic may exist although a broker does not know it yet. With a single broker it is
        always false, because ``ensure_topic`` itself waits until that broker lists the topic.
        """
        ensured = self._ensured.get(name)
        if ensured is None or time.monotonic() > ensured + _PROPAGATION_S:
            return False
        try:
            described = self.wait_for(self.admin().describe_cluster(request_timeout=self.timeout_s))
        except KafkaException as error:
            raise from_kafka(error, "describing the cluster") from error
        return len(described.nodes) > 1

    def ensure_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions unless the topic already has at least this many."""
        if self.expect_topic(topic).partitions >= partitions:
            return
        new_partitions = [NewPartitions(topic, partitions)]
        try:
            self.wait_for(
                self.admin().create_partitions(new_partitions, request_timeout=self.timeout_s)[topic]
            )
        except KafkaException as error:
            # Another process may have added them first.
            if self.expect_topic(topic).partitions < partitions:
                raise from_kafka(error, f"adding partitions to topic {topic!r}") from error

    def starts(self, topic: str) -> dict[int, int]:
        spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(topic, spec, IsolationLevel.READ_UNCOMMITTED)

    def ends(self, topic: str, *, committed: bool = True) -> dict[int, int]:
        """Return the end offset of each partition. With ``committed``, the end is the start of the first open
        transaction.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topic, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]

    def _offsets(self, topic: str, spec: Any, level: IsolationLevel) -> dict[int, int]:
        partitions = range(self.expect_topic(topic).partitions)
        return self.offsets_of(topic, partitions, spec, level)

    def offsets_of(
        self, topic: str, partitions: Iterable[int], spec: Any, level: IsolationLevel
    ) -> dict[int, int]:
        specs = {TopicPartition(topic, number): spec for number in partitions}
        deadline = time.monotonic() + self.timeout_s
        while True:
            futures = self.admin().list_offsets(specs, isolation_level=level, request_timeout=self.timeout_s)
            try:
                return {
                    partition.partition: listed_offset(self.wait_for(future))
                    for partition, future in futures.items()
                }
            except KafkaException as error:
                # A new topic, or a topic whose broker was lost, may temporarily have no leader.
                code = error.args[0].code()
                is_temporary = code in _NO_LEADER or (code in _NO_TOPIC and self._is_propagating(topic))
                if not is_temporary or time.monotonic() > deadline:
                    raise from_kafka(error, f"listing the offsets of topic {topic!r}", topic=topic) from error
            time.sleep(_PAUSE_S)

    def wait_for(self, future: Future[Any], *, timeout_s: float | None = None) -> Any:
        """Wait for a response. librdkafka has its own timeout, but may exceed it on an overloaded machine."""
        try:
            return future.result((self.timeout_s if timeout_s is None else timeout_s) + _GRACE_S)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
