"""Where the log is, and the few questions about topics that flows, followers and checks have in common."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import (
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

from headrace.client.errors import LogError, TopicMissing, from_kafka
from headrace.client.offset_answer import offset_told

__all__ = ["Cluster", "TopicInfo"]

_GRACE_S = 5.0
_PAUSE_S = 0.05
_REFRESH_MS = 2_000
_PROPAGATION_S = 30.0
"""The brokers of a cluster learn of a topic one after the other. For so long after this process has ensured a topic, an
answer that it is unknown may come from a broker that does not know it yet; librdkafka's producers wait as long.
"""
# A name that no topic can have is none that is there.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
_NO_LEADER = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._NOENT,
}


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: str
    partitions: int
    replicas: int = 1


@dataclass(slots=True)
class Cluster:
    """Clients are made on demand; the one for questions is kept, since an answer arrives in a thread of its own."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0
    """How long an answer is waited for."""
    replication: int = -1
    """Copies of the partitions of a topic that is made; -1 for the cluster's own default."""
    _admin: AdminClient | None = field(default=None, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _ensured: dict[str, float] = field(default_factory=dict, repr=False)
    """When each topic was ensured, as long as brokers may not know it."""

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
        with self._making:
            if self._admin is None:
                # Who leads is asked for this often. By itself the client sticks to a leader of the cluster that is gone
                # for five minutes, and every question is a timeout.
                self._admin = AdminClient(self.config({"topic.metadata.refresh.interval.ms": _REFRESH_MS}))
            return self._admin

    def apart(self) -> Cluster:
        """The same log, with a client of its own for questions."""
        return replace(self, _admin=None, _making=threading.Lock())

    def producer(self, extra: Mapping[str, Any] | None = None) -> Producer:
        return Producer(self.config({"partitioner": "murmur2_random", **(extra or {})}))

    def consumer(self, extra: Mapping[str, Any] | None = None) -> Consumer:
        """Assigned by hand: positions are kept with what was derived, never with the group."""
        defaults = {
            "group.id": "headrace",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
            "allow.auto.create.topics": False,
        }
        return Consumer(self.config({**defaults, **(extra or {})}))

    def topic(self, name: str) -> TopicInfo | None:
        # The client would cut such a name, or raise of itself.
        if not _NAME.fullmatch(name):
            return None
        while (found := self._describe(name)) is None and self._is_propagating(name):
            time.sleep(_PAUSE_S)
        return found

    def _describe(self, name: str) -> TopicInfo | None:
        found = self.admin().describe_topics(TopicCollection([name]), request_timeout=self.timeout_s)[name]
        try:
            described = self.answer(found)
        except KafkaException as error:
            if error.args[0].code() in _NO_TOPIC:
                return None
            raise from_kafka(error, f"asking for topic {name!r}") from error
        copies = max((len(one.replicas) for one in described.partitions), default=0)
        return TopicInfo(name, str(described.topic_id), len(described.partitions), copies)

    def expect_topic(self, name: str) -> TopicInfo:
        found = self.topic(name)
        if found is None:
            raise TopicMissing(name)
        return found

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        while True:
            asked = self.admin().describe_configs([resource], request_timeout=self.timeout_s)
            try:
                return {name: entry.value for name, entry in self.answer(asked[resource]).items()}
            except KafkaException as error:
                if error.args[0].code() not in _NO_TOPIC or not self._is_propagating(topic):
                    raise from_kafka(
                        error, f"asking for the configs of topic {topic!r}", topic=topic
                    ) from error
            time.sleep(_PAUSE_S)

    def ensure_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> TopicInfo:
        """Create the topic unless it exists; never alter an existing one."""
        found = self.topic(name)
        if found is not None:
            self._note_ensured(name)
            return found
        new = NewTopic(
            name, num_partitions=partitions, replication_factor=self.replication, config=dict(configs or {})
        )
        try:
            self.answer(self.admin().create_topics([new], request_timeout=self.timeout_s)[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise from_kafka(error, f"creating topic {name!r}") from error
        self._note_ensured(name)
        # Apache Kafka answers when the topic is created; also a single broker may not know it yet for a moment.
        deadline = time.monotonic() + self.timeout_s
        while (found := self.topic(name)) is None and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        if found is None:
            raise LogError(
                f"topic {name!r} was created and is not there", name="UNKNOWN_TOPIC_OR_PART", retriable=True
            )
        return found

    def _note_ensured(self, name: str) -> None:
        now = time.monotonic()
        expired = [one for one, at in self._ensured.items() if now > at + _PROPAGATION_S]
        for one in expired:
            self._ensured.pop(one, None)
        self._ensured[name] = now

    def _is_propagating(self, name: str) -> bool:
        """Whether the topic may exist although a broker does not know it. Of a single broker it is known at once."""
        ensured = self._ensured.get(name)
        if ensured is None or time.monotonic() > ensured + _PROPAGATION_S:
            return False
        try:
            described = self.answer(self.admin().describe_cluster(request_timeout=self.timeout_s))
        except KafkaException as error:
            raise from_kafka(error, "asking for the brokers of the cluster") from error
        return len(described.nodes) > 1

    def ensure_partitions(self, topic: str, partitions: int) -> None:
        """At least so many."""
        if self.expect_topic(topic).partitions >= partitions:
            return
        wanted = [NewPartitions(topic, partitions)]
        try:
            self.answer(self.admin().create_partitions(wanted, request_timeout=self.timeout_s)[topic])
        except KafkaException as error:
            # Another one who wanted it too may have been first.
            if self.expect_topic(topic).partitions < partitions:
                raise from_kafka(error, f"adding partitions to topic {topic!r}") from error

    def starts(self, topic: str) -> dict[int, int]:
        spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(topic, spec, IsolationLevel.READ_UNCOMMITTED)

    def ends(self, topic: str, *, committed: bool = True) -> dict[int, int]:
        """Behind the last record per partition; ``committed`` leaves out what belongs to an open transaction."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topic, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]

    def _offsets(self, topic: str, spec: Any, level: IsolationLevel) -> dict[int, int]:
        partitions = range(self.expect_topic(topic).partitions)
        return self.offsets_of(topic, partitions, spec, level)

    def offsets_of(
        self, topic: str, partitions: Iterable[int], spec: Any, level: IsolationLevel
    ) -> dict[int, int]:
        asked = {TopicPartition(topic, number): spec for number in partitions}
        deadline = time.monotonic() + self.timeout_s
        while True:
            answers = self.admin().list_offsets(asked, isolation_level=level, request_timeout=self.timeout_s)
            try:
                return {place.partition: offset_told(self.answer(one)) for place, one in answers.items()}
            except KafkaException as error:
                # Of a topic that was just made, or whose broker was lost, nobody may be the leader for a moment.
                code = error.args[0].code()
                is_passing = code in _NO_LEADER or (code in _NO_TOPIC and self._is_propagating(topic))
                if not is_passing or time.monotonic() > deadline:
                    raise from_kafka(
                        error, f"asking for the offsets of topic {topic!r}", topic=topic
                    ) from error
            time.sleep(_PAUSE_S)

    def answer(self, asked: Future[Any]) -> Any:
        """The client gives up by itself in time; on a machine that is too busy it may not come to that."""
        try:
            return asked.result(self.timeout_s + _GRACE_S)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
