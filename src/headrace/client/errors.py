"""What the log can answer that stops a flow, a follower or a check.

LogError            an answer that is not a yes; ``retriable`` says whether waiting can help   (HR-KAFKA-…)
└── TopicMissing    a topic that must be there is not
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import HeadraceError

__all__ = ["LogError", "TopicMissing", "from_kafka"]

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
}
_HEALS = _UNREACHABLE | {
    KafkaError._MSG_TIMED_OUT,
    # Nobody leads a partition: its broker was lost in the middle of a question, and no other has told of it yet.
    KafkaError._NOENT,
    # The client has let go of a broker that was lost, and of what it was asked.
    KafkaError._DESTROY_BROKER,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
}


class LogError(HeadraceError):
    def __init__(
        self, message: str, *, name: str, detail: str = "", hint: str = "", retriable: bool = False
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.code = f"HR-KAFKA-{name}"
        self.retriable = retriable


class TopicMissing(LogError):
    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} does not exist",
            name="UNKNOWN_TOPIC_OR_PART",
            hint="see what there is with: headrace topic list",
        )


def from_kafka(error: KafkaException | KafkaError, doing: str, *, topic: str = "") -> LogError:
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
        return TopicMissing(topic)
    return LogError(
        f"{doing}: {cause.str()}",
        name=cause.name().lstrip("_"),
        retriable=cause.retriable() or cause.code() in _HEALS,
        hint="the broker cannot be reached; it is tried again" if cause.code() in _UNREACHABLE else "",
    )
