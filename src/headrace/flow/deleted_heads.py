"""Finds what is recorded about records that were deleted before a generation begins.

Whether an event is late depends on the earlier records of its partition. If retention has deleted some of them, a new
generation cannot compute the newest event time before its first record. But earlier generations, of this flow or of
another flow that reads the topic, recorded it: before and after each batch. Retention deletes within a batch, so for
the rest of that batch the new generation uses the notes about late events instead. So it finds the same late events as
the earlier generations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress import batches, generations
from headrace.client.records import read
from headrace.flow.rejected import LATE_HEADER
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, DeletedHead, Generation

__all__ = ["find_deleted_heads"]

_NOTES_MAX = 10_000
"""The maximum number of late events of a batch that are read from the notes. Of further ones, only those are found that
can be computed from the remaining records.
"""


def find_deleted_heads(
    cluster: Cluster, app: App, log: str, topic_id: str, starts: Mapping[str, int]
) -> dict[str, DeletedHead]:
    """Return what is known about the records before ``starts``, by partition. A partition is absent if nothing was
    deleted, or nothing is known.
    """
    wanted = {number for number, start in starts.items() if start > 0}
    heads: dict[str, DeletedHead] = {}
    for flow in app.flows:
        for generation in _generations(cluster, flow, log, topic_id):
            for number, batch in _batches_at(cluster, flow, generation, log, starts, wanted - heads.keys()):
                topic = next(source.topic for source in generation.inputs if source.log == log)
                head = _head(cluster, flow, generation, batch, (topic, log, number), starts[number])
                if head is not None:
                    heads[number] = head
            if heads.keys() == wanted:
                return heads
    return heads


def _generations(cluster: Cluster, flow: Flow, log: str, topic_id: str) -> Iterator[Generation]:
    """Yield the generations that recorded event times of the topic, newest first."""
    if cluster.topic(flow.progress_topic) is None:
        return
    for generation in reversed([*generations(cluster, flow.progress_topic)]):
        reads = any((source.log, source.topic_id) == (log, topic_id) for source in generation.inputs)
        if generation.late in ("drop", "side") and reads:
            yield generation


def _batches_at(
    cluster: Cluster,
    flow: Flow,
    generation: Generation,
    log: str,
    starts: Mapping[str, int],
    wanted: set[str],
) -> Iterator[tuple[str, Batch]]:
    """Yield, for each partition, the batch that read the offset where the partition now begins."""
    left = set(wanted)
    if not left:
        return
    for batch in batches(cluster, flow.progress_topic, generation.generation):
        for number in [*left]:
            low, high = batch.inputs.get(log, {}).get(number, (0, 0))
            if low <= starts[number] < high:
                left.discard(number)
                yield number, batch
        if not left:
            return


def _head(
    cluster: Cluster,
    flow: Flow,
    generation: Generation,
    batch: Batch,
    source: tuple[str, str, str],
    start: int,
) -> DeletedHead | None:
    """``source`` is the topic's name in the app and in the log, and the partition."""
    topic, log, number = source
    before_us = batch.newest_us.get(topic, {}).get(number)
    low, high = batch.inputs[log][number]
    if start == low:
        return None if before_us is None else DeletedHead(before_us, start, before_us)
    at_end_us = batch.next_newest_us.get(topic, {}).get(number)
    if at_end_us is None:
        return None
    late = _late_offsets(cluster, flow, generation, batch, log, int(number)) if batch.late else []
    return DeletedHead(before_us, high, at_end_us, [offset for offset in late if start <= offset < high])


def _late_offsets(
    cluster: Cluster, flow: Flow, generation: Generation, batch: Batch, log: str, partition: int
) -> list[int]:
    if cluster.topic(flow.late_topic) is None:
        return []
    ranges = {0: (cluster.starts(flow.late_topic)[0], cluster.ends(flow.late_topic)[0])}
    offsets = []
    for message in read(cluster, flow.late_topic, ranges):
        headers = dict(message.headers() or ())
        try:
            note = msgspec.json.decode(headers.get(LATE_HEADER) or message.value() or b"", type=_Note)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if (note.generation, note.batch) == (generation.generation, batch.batch) and (
            note.topic,
            note.partition,
        ) == (log, partition):
            offsets.append(note.offset)
        if note.generation > generation.generation or len(offsets) >= _NOTES_MAX:
            break
    return offsets


class _Note(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    generation: int
    batch: int
