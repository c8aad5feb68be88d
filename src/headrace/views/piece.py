"""Some records of a changelog, whole batches where a flow wrote them, and where the next ones begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.client.errors import from_kafka
from headrace.model.progress import Batch
from headrace.model.source import Sources

__all__ = ["CONSUMER", "Changelog", "LookAgain", "Piece", "expect_readable", "high_watermark"]

CONSUMER = {
    # A row is visible a few milliseconds after its flow has committed it: answers come with the first byte, and one
    # that was asked for before a partition was resumed does not keep it waiting for long.
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    # What is read ahead is bounded, whatever a topic has.
    "queued.max.messages.kbytes": 16_384,
    "fetch.max.bytes": 8 << 20,
    "fetch.error.backoff.ms": 50,
}
_ELSEWHERE = {
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_ID,
}


@dataclass(frozen=True, slots=True)
class Piece:
    messages: list[Message]
    """In the order in which they count."""
    offsets: dict[int, int]
    """Per partition, what comes behind them."""
    batch: Batch | None = None
    """The last one that is in it."""
    progress_offset: int = 0
    foreign: int = 0
    """More records than the flow says that it has written there: somebody else's, which cannot be told apart."""
    sources: Sources | None = None
    """Behind them; None where rows have no sources."""
    repeats: int = 0
    """Rows that had come before, and are left out."""

    def before(self, later: Piece) -> Piece:
        """Both as one."""
        return Piece(
            self.messages + later.messages,
            later.offsets,
            later.batch or self.batch,
            later.progress_offset,
            self.foreign + later.foreign,
            later.sources,
            self.repeats + later.repeats,
        )


class LookAgain(Exception):
    """The log is not as it was: whoever reads must ask again what there is."""


class Changelog(Protocol):
    def take(self, timeout_s: float) -> Piece | None:
        """The next one, waiting for it a while. Raises ``LookAgain`` when there is something else to follow."""

    def at_end(self) -> bool:
        """Whether all that was there a moment ago has been taken."""

    def is_exact(self) -> bool:
        """Whether the rows that were taken come to a state that was. They do not while compaction may have removed
        some of them for newer ones that are yet to be taken. Asks the log only where rows are missing.
        """

    def passed(self) -> dict[int, int]:
        """Per partition, behind what was taken and behind what holds no records for readers."""

    def lag(self) -> int:
        """How many offsets of the topic are still to be taken, as far as is known."""

    def close(self) -> None: ...


def expect_readable(message: Message) -> bool:
    """Whether it is a record; False for the news that a partition's end was reached. Raises for all else."""
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:
        return False
    if error.code() in _ELSEWHERE:
        raise LookAgain(f"{message.topic()}: {error.str()}")
    raise from_kafka(error, f"reading topic {message.topic()!r}")


def high_watermark(consumer: Consumer, topic: str, partition: int) -> int:
    """As the last answer told it, without asking."""
    known = consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
    return known[1] if known and known[1] is not None else 0
