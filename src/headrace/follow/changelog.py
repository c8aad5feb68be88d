"""The interface for reading a topic as the changelog of a view.

``FlowChangelog`` implements it for a topic that a flow writes, ``RealtimeChangelog`` for a topic that a real-time flow
writes, and ``TopicChangelog`` for every other topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.client.errors import from_kafka
from headrace.model.progress import Batch, Sources

__all__ = [
    "CONSUMER_CONFIG",
    "ChangeBatch",
    "Changelog",
    "FlowProgress",
    "SourceChanged",
    "high_watermark",
    "is_record",
    "remaining_offsets",
]

CONSUMER_CONFIG = {
    # For low latency, the broker responds as soon as one byte is available. A partition that is resumed
    # during a fetch is only part of the next fetch, so each fetch must end soon.
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    # Limit the memory for records that are fetched ahead.
    "queued.max.messages.kbytes": 16_384,
    "fetch.max.bytes": 8 << 20,
    "fetch.error.backoff.ms": 50,
}
_SOURCE_CHANGED = {
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_ID,
}


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Records to apply together. If a flow writes the topic, they are complete batches of the flow."""

    messages: list[Message]
    """The records in the order in which to apply them."""
    offsets: dict[int, int]
    """The next offset per partition."""
    batch: Batch | None = None
    """The last batch of the flow that these records complete."""
    progress_offset: int = 0
    foreign: int = 0
    """The number of records that the flow did not write. In ``messages`` they cannot be distinguished from its rows."""
    sources: Sources | None = None
    """For a real-time flow: the last input offsets from which rows were derived. Otherwise None."""
    repeats: int = 0
    """The number of repeated rows, which are not in ``messages``."""

    def merged(self, later: ChangeBatch) -> ChangeBatch:
        return ChangeBatch(
            self.messages + later.messages,
            later.offsets,
            later.batch or self.batch,
            later.progress_offset,
            self.foreign + later.foreign,
            later.sources,
            self.repeats + later.repeats,
        )


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """Where to begin in a flow's progress topic, and the generation to read."""

    topic: str
    offset: int
    generation: int


class SourceChanged(Exception):
    """The topic, its partitions or the flow's generation changed. The reader must call ``find_origin`` again."""


class Changelog(Protocol):
    def poll(self, timeout_s: float) -> ChangeBatch | None:
        """Return the next records; None after the timeout. Raises ``SourceChanged``."""

    def at_end(self) -> bool:
        """Whether all records up to the last known end of the topic have been polled."""

    def is_exact(self) -> bool:
        """Whether the polled rows form an exact state: a state that the topic had at some time. They do not while
        compaction has removed rows and the newer rows of the same keys are not polled yet. Sends a request to the log
        only if rows are missing.
        """

    def passed(self) -> dict[int, int]:
        """Return the next offset per partition, after the polled records and after offsets without records."""

    def lag(self) -> int:
        """Return the number of offsets that are not polled yet, as far as known."""

    def close(self) -> None: ...


def is_record(message: Message) -> bool:
    """Return False for an end-of-partition event; raises ``SourceChanged`` or ``LogError`` for an error."""
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:
        return False
    if error.code() in _SOURCE_CHANGED:
        raise SourceChanged(f"{message.topic()}: {error.str()}")
    raise from_kafka(error, f"reading topic {message.topic()!r}")


def high_watermark(consumer: Consumer, topic: str, partition: int) -> int:
    """Return the high watermark of the last fetch response, without a request."""
    watermarks = consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
    return watermarks[1] if watermarks and watermarks[1] is not None else 0


def remaining_offsets(consumer: Consumer, topic: str, passed: dict[int, int], ended: set[int]) -> int:
    """Return the number of offsets up to the high watermarks, for the partitions that are not in ``ended``."""
    return sum(
        max(0, high_watermark(consumer, topic, number) - offset)
        for number, offset in passed.items()
        if number not in ended
    )
