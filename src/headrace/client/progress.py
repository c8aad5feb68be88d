"""A flow's progress in the log: its current generation, its batches, and its lag.

A *generation* of a flow derives its output from the first input record on; a rebuild begins a new generation. Each
generation has a progress topic (``headrace.client.generations`` finds it), with a record for the generation, for each
committed batch, and for each change of the driver (the process that runs the flow). Earlier releases wrote all
generations to one progress topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Message

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.records import last_record, read
from headrace.model.progress import (
    Batch,
    Driver,
    Generation,
    Input,
    Owner,
    Record,
    UnreadableProgress,
    decode,
)

__all__ = [
    "Progress",
    "batches",
    "current",
    "current_driver",
    "flow_lag",
    "generation_at",
    "generations",
    "reached",
    "unread_records",
    "wait_until_decided",
]

_PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Progress:
    generation: Generation
    last: Batch | None
    """The last committed batch of the generation."""
    generation_offset: int
    last_offset: int = -1
    """The offset of the last batch's record; -1 before the first batch."""


def current(cluster: Cluster, progress_topic: str) -> Progress | None:
    """Return the newest generation and its last batch; None before the first start.

    Reads only the last few records and the record of the generation, regardless of the number of batches.
    """
    if cluster.topic(progress_topic) is None:
        return None
    message = last_record(cluster, progress_topic)
    if message is None:
        return None
    record, offset = _decode_message(message), message.offset() or 0
    if isinstance(record, Generation):
        return _with_last_batch(cluster, progress_topic, record, offset, record.batch_offset)
    at = record.generation_offset
    generation = _record_at(cluster, progress_topic, at)
    if not isinstance(generation, Generation):
        raise _missing(progress_topic, f"generation {record.generation}", at)
    if isinstance(record, Batch):
        return Progress(generation, record, at, offset)
    return _with_last_batch(cluster, progress_topic, generation, at, record.batch_offset)


def _with_last_batch(
    cluster: Cluster, topic: str, generation: Generation, generation_offset: int, batch_offset: int
) -> Progress:
    if batch_offset < 0:
        return Progress(generation, None, generation_offset)
    last = _record_at(cluster, topic, batch_offset)
    if not isinstance(last, Batch):
        raise _missing(topic, "a batch", batch_offset)
    return Progress(generation, last, generation_offset, batch_offset)


def generation_at(
    cluster: Cluster, progress_topic: str, progress_offset: int
) -> tuple[Generation, int] | None:
    """Return the generation record that applies to the next batch after ``progress_offset``, and its offset.

    This is the newest one, unless the generation continued in another topic after batches that are still to be read.
    """
    progress = current(cluster, progress_topic)
    if progress is None:
        return None
    generation, at = progress.generation, progress.generation_offset
    while generation.continues >= 0 and progress_offset <= generation.batch_offset:
        at = generation.continues
        record = _record_at(cluster, progress_topic, at)
        if not isinstance(record, Generation):
            raise _missing(progress_topic, f"generation {generation.generation}", at)
        generation = record
    return generation, at


def wait_until_decided(cluster: Cluster, progress_topic: str, timeout_s: float = 30.0) -> None:
    """Wait until no transaction is open in the topic; raises a retriable ``LogError`` after ``timeout_s``.

    The log confirms a commit a moment before readers can see the committed records. A driver resumes after the last
    batch, so it must not miss a batch that is committed but not visible yet.
    """
    deadline = time.monotonic() + timeout_s
    while cluster.ends(progress_topic) != cluster.ends(progress_topic, committed=False):
        if time.monotonic() > deadline:
            raise LogError(
                f"a transaction in {progress_topic} is still open after {timeout_s:.0f} s",
                name="TIMED_OUT",
                hint="check that only the flow itself writes to this topic",
                retriable=True,
            )
        time.sleep(_PAUSE_S)


def current_driver(cluster: Cluster, progress_topic: str) -> Driver | None:
    """Return the driver that last opened the flow. None before the first start, or if an older release wrote the last
    record.
    """
    if cluster.topic(progress_topic) is None:
        return None
    message = last_record(cluster, progress_topic)
    if message is None:
        return None
    record: Record | None = _decode_message(message)
    if isinstance(record, Batch):
        at = record.owner_offset
        record = None if at < 0 else _record_at(cluster, progress_topic, at)
    return record.driver if isinstance(record, Generation | Owner) else None


def generations(cluster: Cluster, progress_topic: str) -> Iterator[Generation]:
    """Yield all generations in log order, the newest last."""
    yield from (record for record in _all_records(cluster, progress_topic) if isinstance(record, Generation))


def batches(cluster: Cluster, progress_topic: str, generation: int) -> Iterator[Batch]:
    """Yield the batches of a generation in log order."""
    for record in _all_records(cluster, progress_topic):
        if isinstance(record, Batch) and record.generation == generation:
            yield record


def _record_at(cluster: Cluster, topic: str, offset: int) -> Record | None:
    return next(map(_decode_message, read(cluster, topic, {0: (offset, offset + 1)})), None)


def _missing(topic: str, what: str, offset: int) -> UnreadableProgress:
    return UnreadableProgress(
        f"topic {topic} does not have the record of {what} at offset {offset}",
        hint="check that the topic's retention deletes no records, then rebuild the flow",
    )


def _all_records(cluster: Cluster, topic: str) -> Iterator[Record]:
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    yield from map(_decode_message, read(cluster, topic, ranges))


def _decode_message(message: Message) -> Record:
    position = f"{message.topic()} at offset {message.offset()}"
    return decode(message.value() or b"", where=position)


def flow_lag(cluster: Cluster, progress: Progress) -> int:
    streams = [source.log for source in progress.generation.inputs if source.kind == "events"]
    return unread_records(progress.generation, progress.last, {log: cluster.ends(log) for log in streams})


def unread_records(generation: Generation, last: Batch | None, ends: dict[str, dict[int, int]]) -> int:
    """Return the number of input records that no committed batch has read. ``ends`` has the end offsets of each input
    topic, by its name in the log.
    """
    unread = 0
    for source in generation.inputs:
        at = reached(source, last)
        for number, end in ends.get(source.log, {}).items():
            unread += max(0, end - at.get(number, 0))
    return unread


def reached(source: Input, last: Batch | None) -> dict[int, int]:
    """Return, per partition of the input, the offset from which the next batch reads. A partition that was added since
    the last batch is absent.
    """
    read = last.inputs.get(source.log, {}) if last else {}
    return {int(number): to for number, (_, to) in read.items()} or {
        int(number): start for number, start in source.starts.items()
    }
