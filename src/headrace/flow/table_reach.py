"""How far a flow's batches knew the tables that they read, held against the log.

A progress record names, per table and partition, the offset before which the batch knew the table. These must be
offsets of the partitions that the generation began with, and never lower than those of the batch before. And no batch
may have known less than it should: what the log had appended before the progress record of the batch before it was.

The last is judged by the times that the log itself has given, which both topics have where they were created by
Headrace (``message.timestamp.type=LogAppendTime``). A record is readable some time after it was appended, when it is on
disk and, in a cluster, on other nodes: so a difference below ``_VISIBLE_MS`` says nothing. Nor does a partition with
offsets missing further on: one may be the end of a transaction, before which nobody can read what is in it. Nor do
times from before the clock of the log was set back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation, decode

__all__ = ["table_mistakes"]

_VISIBLE_MS = 10_000
_TOLD_MAX = 5


@dataclass(frozen=True, slots=True)
class _Reach:
    """A batch knew a partition up to ``offset``, and what was appended before ``appended_ms`` it should have known."""

    batch: int
    offset: int
    appended_ms: int


_Places = dict[tuple[str, int], dict[int, _Reach]]
"""By table, as the log names it, and partition; then by offset, of which the last batch has the latest time."""


def table_mistakes(
    cluster: Cluster, flow: Flow, generation: Generation, through: Batch, logs: Sequence[str]
) -> tuple[str, ...]:
    """``logs`` are the tables, as the log names them, that are still those that the generation has read."""
    partitions = {one.log: set(one.starts) for one in generation.inputs if one.kind == "table"}
    if not partitions:
        return ()
    mistakes: list[str] = []
    places: _Places = {}
    before: Batch | None = None
    before_ms: int | None = None
    for batch, appended_ms in _batches(cluster, flow, generation, through):
        mistakes += _odd_partitions(batch, partitions)
        mistakes += [] if before is None else _steps_back(before, batch)
        if before_ms is not None and appended_ms is not None and appended_ms < before_ms:
            # The clock was set back: times from before it compare with none from after it.
            places, before_ms = {}, None
        if before_ms is not None:
            for log in logs:
                for text, offset in batch.tables.get(log, {}).items():
                    reach = _Reach(batch.batch, offset, before_ms)
                    places.setdefault((log, int(text)), {})[offset] = reach
        before, before_ms = batch, appended_ms
    for (log, number), reaches in places.items():
        mistakes += _too_short(cluster, log, number, list(reaches.values()))
    more = len(mistakes) - _TOLD_MAX
    return (*mistakes[:_TOLD_MAX], f"{more} more of this kind") if more > 0 else tuple(mistakes)


def _odd_partitions(batch: Batch, partitions: Mapping[str, set[str]]) -> list[str]:
    return [
        f"batch {batch.batch} knew {len(batch.tables.get(log, {}))} partitions of table {log}, and the generation began"
        f" with {len(numbers)}"
        for log, numbers in partitions.items()
        if set(batch.tables.get(log, {})) != numbers
    ]


def _steps_back(before: Batch, batch: Batch) -> list[str]:
    return [
        f"batch {batch.batch} knew table {log}/{number} up to offset {offset}, and batch {before.batch} before it up to"
        f" {before.tables[log][number]}"
        for log, offsets in batch.tables.items()
        for number, offset in offsets.items()
        if offset < before.tables.get(log, {}).get(number, 0)
    ]


def _batches(
    cluster: Cluster, flow: Flow, generation: Generation, through: Batch
) -> Iterator[tuple[Batch, int | None]]:
    """With when the log has appended their records, where it says so."""
    topic = flow.progress_topic
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    for message in read(cluster, topic, ranges):
        record = decode(message.value() or b"", where=f"{topic} at offset {message.offset()}")
        if isinstance(record, Batch) and record.generation == generation.generation:
            if record.batch > through.batch:
                return
            kind, stamp_ms = message.timestamp()
            yield record, stamp_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None


def _too_short(cluster: Cluster, log: str, number: int, reaches: list[_Reach]) -> list[str]:
    """Of batches in their order, those that did not know a record that they should have."""
    start, end = cluster.starts(log).get(number, 0), cluster.ends(log).get(number, 0)
    waiting = sorted((one for one in reaches if start <= one.offset < end), key=lambda one: one.offset)
    if not waiting:
        return []
    found: list[tuple[_Reach, int, int]] = []
    following = waiting[0].offset
    complete_from, at = following, 0
    for message in read(cluster, log, {number: (following, end)}):
        offset, (kind, stamp_ms) = message.offset() or 0, message.timestamp()
        if offset > following:
            complete_from = offset
        following = offset + 1
        while at < len(waiting) and waiting[at].offset <= offset:
            reach, at = waiting[at], at + 1
            too_old = stamp_ms < reach.appended_ms - _VISIBLE_MS
            if too_old and kind == TIMESTAMP_LOG_APPEND_TIME:
                found.append((reach, offset, stamp_ms))
    if following < end:
        return []
    return [
        f"batch {reach.batch} knew table {log}/{number} up to offset {reach.offset}, and the record at {offset} was"
        f" appended {reach.appended_ms - stamp_ms} ms before the batch before it was committed"
        for reach, offset, stamp_ms in found
        if reach.offset >= complete_from
    ]
