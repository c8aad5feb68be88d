"""A flow's progress as the log has it: the generation that counts, and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.reading import last_record, read
from headrace.model.progress import Batch, Generation, UnreadableProgress, decode

__all__ = ["Progress", "batches", "current", "generations"]


@dataclass(frozen=True, slots=True)
class Progress:
    generation: Generation
    last: Batch | None
    """The last batch of the generation that was committed."""
    generation_offset: int


def current(cluster: Cluster, progress_topic: str) -> Progress | None:
    """The newest generation and its last batch; None before the first start.

    However many batches there are, it reads the last few records, and the one that began the generation.
    """
    if cluster.topic(progress_topic) is None:
        return None
    message = last_record(cluster, progress_topic)
    if message is None:
        return None
    record = _decoded(message)
    if isinstance(record, Generation):
        return Progress(record, None, message.offset() or 0)
    at = record.generation_offset
    generation = next(map(_decoded, read(cluster, progress_topic, {0: (at, at + 1)})), None)
    if not isinstance(generation, Generation):
        raise UnreadableProgress(
            f"{progress_topic} has no record of generation {record.generation} at offset {at}",
            hint="the topic must keep all of its records; rebuild the flow",
        )
    return Progress(generation, record, at)


def generations(cluster: Cluster, progress_topic: str) -> Iterator[Generation]:
    """In the order of the log: the newest comes last."""
    yield from (one for one in _all(cluster, progress_topic) if isinstance(one, Generation))


def batches(cluster: Cluster, progress_topic: str, generation: int) -> Iterator[Batch]:
    """In order, each once."""
    for record in _all(cluster, progress_topic):
        if isinstance(record, Batch) and record.generation == generation:
            yield record


def _all(cluster: Cluster, topic: str) -> Iterator[Generation | Batch]:
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    yield from map(_decoded, read(cluster, topic, ranges))


def _decoded(message: Message) -> Generation | Batch:
    where = f"{message.topic()} at offset {message.offset()}"
    return decode(message.value() or b"", where=where)
