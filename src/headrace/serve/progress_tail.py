"""The newest part of a flow's progress, kept at hand: how far its inputs were in it after each batch.

Only the last batches are kept. What was before them is not known here, and is taken for not there yet: an answer may be
late because of it, never wrong.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.errors import from_kafka
from headrace.client.progress_log import generations
from headrace.client.reading import take
from headrace.model.progress import Batch, Generation, decode

__all__ = ["Noted", "ProgressTail"]

_KEPT = 5_000
_AT_ONCE = 10_000
_PATIENCE_S = 10.0

Ends = dict[int, int]


@dataclass(frozen=True, slots=True)
class Noted:
    """After a batch."""

    generation: int
    batch: int
    inputs: dict[str, Ends]
    """Per topic of the log, events and tables: what of it is in what was derived so far."""
    written: Ends
    """Behind all rows so far, per partition of the output."""


class ProgressTail:
    """For any thread."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._generations: dict[int, Generation] = {}
        self._noted: deque[Noted] = deque(maxlen=_KEPT)

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def look(self) -> None:
        """Takes in what is there; the first time all that is kept, and then what has come."""
        with self._lock:
            if self._consumer is None:
                if self._cluster.topic(self._topic) is None:
                    return
                self._begin()
            else:
                self._take(0)

    def generation(self, number: int = 0, output: str = "") -> Generation | None:
        """By its number, or by the topic that it writes."""
        with self._lock:
            found = [*self._generations.values()]
        return next((one for one in found if one.generation == number or one.output == output), None)

    def newest_output(self) -> str | None:
        with self._lock:
            newest = max(self._generations, default=None)
            return None if newest is None else self._generations[newest].output

    def at_batch(self, generation: int, batch: int) -> Noted | None:
        return next((one for one in self._kept() if (one.generation, one.batch) == (generation, batch)), None)

    def read_up_to(self, generation: int, offsets: Ends) -> Noted | None:
        """The last batch of which whoever has read the output up to there has all rows, and those before it."""
        for one in self._kept():
            if one.generation == generation and all(
                offsets.get(number, 0) >= end for number, end in one.written.items()
            ):
                return one
        return None

    def _kept(self) -> list[Noted]:
        """The newest first."""
        with self._lock:
            return [*reversed(self._noted)]

    # Reading

    def _begin(self) -> None:
        start, end = self._cluster.starts(self._topic)[0], self._cluster.ends(self._topic)[0]
        # Of each generation there is one record, and its place is known to its batches only.
        self._generations = {one.generation: one for one in generations(self._cluster, self._topic)}
        consumer = self._cluster.consumer({"fetch.wait.max.ms": 100})
        consumer.assign([TopicPartition(self._topic, 0, max(start, end - 2 * _KEPT))])
        self._consumer = consumer
        try:
            while not self._take(_PATIENCE_S):
                pass
        except BaseException:
            self._consumer = None
            consumer.close()
            raise

    def _take(self, timeout_s: float) -> bool:
        """Whether the end was seen."""
        assert self._consumer is not None
        ended = False
        found = take(self._consumer, _AT_ONCE, timeout_s)
        if not found and timeout_s:
            raise from_kafka(KafkaError(KafkaError._TIMED_OUT), f"reading topic {self._topic!r}")
        for message in found:
            error = message.error()
            if error is None:
                self._note(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended = True
            elif not error.retriable() and error.code() not in (
                KafkaError._TRANSPORT,
                KafkaError._ALL_BROKERS_DOWN,
            ):
                raise from_kafka(error, f"reading topic {self._topic!r}")
        return ended

    def _note(self, message: Message) -> None:
        where = f"{self._topic} at offset {message.offset()}"
        record = decode(message.value() or b"", where=where)
        if isinstance(record, Generation):
            self._generations[record.generation] = record
        elif isinstance(record, Batch):
            self._noted.append(self._after(record))

    def _after(self, batch: Batch) -> Noted:
        before = self._noted[-1] if self._noted and self._noted[-1].generation == batch.generation else None
        generation = self._generations[batch.generation]
        inputs = {log: dict(ends) for log, ends in before.inputs.items()} if before else {}
        for log, ranges in batch.inputs.items():
            ends = inputs.setdefault(log, {})
            for number, (_, end) in ranges.items():
                ends[int(number)] = max(end, ends.get(int(number), 0))
        for log, tables in batch.tables.items():
            inputs.setdefault(log, {}).update({int(number): end for number, end in tables.items()})
        written = dict(before.written) if before else self._written_before(generation, batch)
        for number, (_, end) in batch.outputs.get(generation.output, {}).items():
            written[int(number)] = max(end, written.get(int(number), 0) if before else 0)
        return Noted(batch.generation, batch.batch, inputs, written)

    def _written_before(self, generation: Generation, batch: Batch) -> Ends:
        """At the first batch that is known: no less than what earlier ones have written."""
        if batch.batch == 0:
            return {int(number): start for number, start in generation.output_starts.items()}
        return self._cluster.ends(generation.output) if self._cluster.topic(generation.output) else {}
