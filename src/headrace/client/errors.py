"""Errors of the Kafka client.

LogError            a failed request; ``retriable`` means that a retry may succeed   (HR-KAFKA-…)
└── MissingTopic    a required topic does not exist
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import HeadraceError

__all__ = ["LogError", "MissingTopic", "from_kafka"]

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
}
_HEALS = _UNREACHABLE | {
    KafkaError._MSG_TIMED_OUT,
    # A partition has no leader: its broker was lost during a request, and no other broker has taken over yet.
    KafkaError._NOENT,
    # The client dropped a lost broker and the pending requests to it.
    KafkaError._DESTROY_BROKER,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    # The broker was restarted with a new leader epoch, which the client or the broker does not know yet.
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
}


class LogError(HeadraceError):
    kafka_error: KafkaError | None = None
    """The error that a broker or librdkafka reported, or ``None``."""

    def __init__(
        self, message: str, *, name: str, detail: str = "", hint: str = "", retriable: bool = False
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = f"HR-KAFKA-{name}"
        self.retriable = retriable


class MissingTopic(LogError):
    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} does not exist",
            name="UNKNOWN_TOPIC_OR_PART",
            hint="list the topics with: headrace topic list",
        )


def from_kafka(error: KafkaException | KafkaError, doing: str, *, topic: str = "") -> LogError:
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
        log_error: LogError = MissingTopic(topic)
    else:
        log_error = LogError(
            f"{doing}: {cause.str()}",
            name=cause.name().lstrip("_"),
            retriable=cause.retriable() or cause.code() in _HEALS,
            hint="the broker cannot be reached; Headrace retries" if cause.code() in _UNREACHABLE else "",
        )
    log_error.kafka_error = cause
    return log_error
