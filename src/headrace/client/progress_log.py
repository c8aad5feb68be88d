"""A flow's progress as the log has it: the generation that counts, and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.reading import last_record, read
from headrace.model.progress import Batch, Driver, Generation, Owner, Record, UnreadableProgress, decode

__all__ = ["Progress", "batches", "current", "current_driver", "generations"]


@dataclass(frozen=True, slots=True)
class Progress:
    generation: Generation
    last: Batch | None
    """The last batch of the generation that was committed."""
    generation_offset: int
    last_offset: int = -1
    """Where the record of the last batch is; -1 before the first."""


def current(cluster: Cluster, progress_topic: str) -> Progress | None:
    """The newest generation and its last batch; None before the first start.

    However many batches there are, it reads the last few records, and the one that began the generation.
    """
    if cluster.topic(progress_topic) is None:
        return None
    message = last_record(cluster, progress_topic)
    if message is None:
        return None
    record, offset = _decoded(message), message.offset() or 0
    if isinstance(record, Generation):
        return Progress(record, None, offset)
    at = record.generation_offset
    generation = _record_at(cluster, progress_topic, at)
    if not isinstance(generation, Generation):
        raise _missing(progress_topic, f"generation {record.generation}", at)
    if isinstance(record, Batch):
        return Progress(generation, record, at, offset)
    if record.batch_offset < 0:
        return Progress(generation, None, at)
    last = _record_at(cluster, progress_topic, record.batch_offset)
    if not isinstance(last, Batch):
        raise _missing(progress_topic, "a batch", record.batch_offset)
    return Progress(generation, last, at, record.batch_offset)


def current_driver(cluster: Cluster, progress_topic: str) -> Driver | None:
    """The driver that opened the flow last; None before the first start, or if an earlier release wrote the last
    record.
    """
    if cluster.topic(progress_topic) is None:
        return None
    message = last_record(cluster, progress_topic)
    if message is None:
        return None
    record: Record | None = _decoded(message)
    if isinstance(record, Batch):
        at = record.owner_offset
        record = None if at < 0 else _record_at(cluster, progress_topic, at)
    return record.driver if isinstance(record, Generation | Owner) else None


def generations(cluster: Cluster, progress_topic: str) -> Iterator[Generation]:
    """In the order of the log: the newest comes last."""
    yield from (one for one in _all(cluster, progress_topic) if isinstance(one, Generation))


def batches(cluster: Cluster, progress_topic: str, generation: int) -> Iterator[Batch]:
    """In order, each once."""
    for record in _all(cluster, progress_topic):
        if isinstance(record, Batch) and record.generation == generation:
            yield record


def _record_at(cluster: Cluster, topic: str, offset: int) -> Record | None:
    return next(map(_decoded, read(cluster, topic, {0: (offset, offset + 1)})), None)


def _missing(topic: str, what: str, offset: int) -> UnreadableProgress:
    return UnreadableProgress(
        f"{topic} has no record of {what} at offset {offset}",
        hint="the topic must keep all of its records; rebuild the flow",
    )


def _all(cluster: Cluster, topic: str) -> Iterator[Record]:
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    yield from map(_decoded, read(cluster, topic, ranges))


def _decoded(message: Message) -> Record:
    where = f"{message.topic()} at offset {message.offset()}"
    return decode(message.value() or b"", where=where)
