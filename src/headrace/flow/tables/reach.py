"""Checks, against the log, up to which offsets a flow's batches had read their tables.

A progress record has, for each table and partition, the offset up to which the batch had read the table. Three checks:

- The partitions must be those with which the generation began.
- An offset must not be below the offset in the previous batch.
- A batch must have read every record that was appended before the progress record of the previous batch.

The last check compares append times. The table and the progress topic have them if Headrace created both topics
(``message.timestamp.type=LogAppendTime``). The check ignores three cases that prove nothing:

- A record becomes readable some time after its append: when it is on disk and, in a cluster, on other nodes. So
  differences below ``_VISIBILITY_DELAY_MS`` are ignored.
- A gap in the offsets of a partition can be the end of a transaction. Its records were not readable before that end. So
  offsets before a gap are ignored.
- If the log's clock was set back, times from before cannot be compared with times from after. The earlier times are
  ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from headrace.client.cluster import Cluster
from headrace.client.generations import progress_topic_of
from headrace.client.records import read
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, Generation, decode

__all__ = ["table_mistakes"]

_VISIBILITY_DELAY_MS = 10_000
_REPORTED_MAX = 5


@dataclass(frozen=True, slots=True)
class _RequiredRead:
    """A batch had read a partition up to ``offset``. The batch should have read all records that were appended before
    ``appended_ms``.
    """

    batch: int
    offset: int
    appended_ms: int


_RequiredReads = dict[tuple[str, int], dict[int, _RequiredRead]]
"""For each partition of a table (by its name in the log), and for each offset: the last batch that had read up to that
offset.
"""


def table_mistakes(
    cluster: Cluster, flow: Flow, generation: Generation, through: Batch, logs: Sequence[str]
) -> tuple[str, ...]:
    """``logs`` has the log names of the tables that were not replaced since the generation began."""
    partitions = {source.log: set(source.starts) for source in generation.inputs if source.kind == "table"}
    if not partitions:
        return ()
    mistakes: list[str] = []
    required_by_offset: _RequiredReads = {}
    previous: Batch | None = None
    previous_ms: int | None = None
    for batch, appended_ms in _batches(cluster, flow, generation, through):
        mistakes += _wrong_partitions(batch, partitions)
        mistakes += [] if previous is None else _decreased_offsets(previous, batch)
        if previous_ms is not None and appended_ms is not None and appended_ms < previous_ms:
            # The clock was set back: earlier and later times cannot be compared.
            required_by_offset, previous_ms = {}, None
        if previous_ms is not None:
            for log in logs:
                for partition, offset in batch.tables.get(log, {}).items():
                    required = _RequiredRead(batch.batch, offset, previous_ms)
                    required_by_offset.setdefault((log, int(partition)), {})[offset] = required
        previous, previous_ms = batch, appended_ms
    for (log, number), required_reads in required_by_offset.items():
        mistakes += _missed_records(cluster, log, number, list(required_reads.values()))
    hidden = len(mistakes) - _REPORTED_MAX
    return (
        (*mistakes[:_REPORTED_MAX], f"{hidden} more mistakes of this kind") if hidden > 0 else tuple(mistakes)
    )


def _wrong_partitions(batch: Batch, partitions: Mapping[str, set[str]]) -> list[str]:
    return [
        f"batch {batch.batch} read {len(batch.tables.get(log, {}))} partitions of table {log}, but the generation began"
        f" with {len(numbers)}"
        for log, numbers in partitions.items()
        if set(batch.tables.get(log, {})) != numbers
    ]


def _decreased_offsets(previous: Batch, batch: Batch) -> list[str]:
    return [
        f"batch {batch.batch} had read table {log}/{number} up to offset {offset}, but the earlier batch"
        f" {previous.batch} up to {previous.tables[log][number]}"
        for log, offsets in batch.tables.items()
        for number, offset in offsets.items()
        if offset < previous.tables.get(log, {}).get(number, 0)
    ]


def _batches(
    cluster: Cluster, flow: Flow, generation: Generation, through: Batch
) -> Iterator[tuple[Batch, int | None]]:
    """Yield the batches, each with the append time of its progress record, if the log has that time."""
    topic = progress_topic_of(cluster, flow, generation.generation)
    ranges = {0: (cluster.starts(topic)[0], cluster.ends(topic)[0])}
    for message in read(cluster, topic, ranges):
        record = decode(message.value() or b"", where=f"{topic} at offset {message.offset()}")
        if isinstance(record, Batch) and record.generation == generation.generation:
            if record.batch > through.batch:
                return
            kind, timestamp_ms = message.timestamp()
            yield record, timestamp_ms if kind == TIMESTAMP_LOG_APPEND_TIME else None


def _missed_records(
    cluster: Cluster, log: str, number: int, required_reads: list[_RequiredRead]
) -> list[str]:
    """Return a message for each batch that had not read a record which it should have read."""
    start, end = cluster.starts(log).get(number, 0), cluster.ends(log).get(number, 0)
    pending = sorted(
        (required for required in required_reads if start <= required.offset < end),
        key=lambda required: required.offset,
    )
    if not pending:
        return []
    too_short_reads: list[tuple[_RequiredRead, int, int]] = []
    next_offset = pending[0].offset
    complete_from, next_required = next_offset, 0
    for message in read(cluster, log, {number: (next_offset, end)}):
        offset, (kind, timestamp_ms) = message.offset() or 0, message.timestamp()
        if offset > next_offset:
            complete_from = offset
        next_offset = offset + 1
        while next_required < len(pending) and pending[next_required].offset <= offset:
            required, next_required = pending[next_required], next_required + 1
            is_older = timestamp_ms < required.appended_ms - _VISIBILITY_DELAY_MS
            if is_older and kind == TIMESTAMP_LOG_APPEND_TIME:
                too_short_reads.append((required, offset, timestamp_ms))
    if next_offset < end:
        return []
    return [
        f"batch {required.batch} had read table {log}/{number} up to offset {required.offset}, but the record at"
        f" {offset} was appended {required.appended_ms - timestamp_ms} ms before the previous batch was committed"
        for required, offset, timestamp_ms in too_short_reads
        if required.offset >= complete_from
    ]
