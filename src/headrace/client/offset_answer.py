"""The offset in an answer of the log, or that there is none in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

if TYPE_CHECKING:
    from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]

__all__ = ["offset_told"]


def offset_told(answer: ListOffsetsResultInfo) -> int:
    """A broker that is lost in the middle of a question is no error to the client: its answer is an offset that is
    none (librdkafka 2.x, about every fourth kill while questions are under way).
    """
    if answer.offset == OFFSET_INVALID:
        raise KafkaException(
            KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "the broker was lost in the middle of the answer")
        )
    return answer.offset
