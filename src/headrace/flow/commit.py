"""Commits a batch: rows, rejected records and the progress record in one transaction.

    send the rows                      readers of committed records do not see them yet
    send late and dead records         if any: their records are read from the input again
    send the progress record           it has the offsets of the rows
    commit                             all of them become visible at once

If the progress record of a batch exists, the batch is not written again. Spark still runs its plan to build the state.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.transactional_writer import OutgoingRecord, TransactionalWriter
from headrace.flow.errors import FlowError, RowTooLarge
from headrace.flow.flow_state import FlowState
from headrace.flow.rejected import Counts, DeadLetterSpool, RejectedRecord, dead_letter, late_record
from headrace.model.declarations import Flow, next_watermark
from headrace.model.progress import Batch, Generation, Ranges, Totals, encode
from headrace.model.rejection import Reason, Rejection

__all__ = ["BatchResult", "Miscounted", "commit_batch", "ranges_of"]


class Miscounted(FlowError):
    """The counts of the plan do not match the records, because a task ran twice. The batch must be counted again."""

    code = "HR-FLOW-MISCOUNTED"
    retriable = True


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch that Spark computed."""

    number: int
    pieces: Callable[[], Iterable[pa.Table]]
    """Returns the rows in the order in which they are written, with the columns ``key`` and ``value``."""
    inputs: Ranges
    watermark_us: int | None
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """By the name that the input topic has in the app."""
    rejected: Callable[[], Iterable[RejectedRecord]] = tuple
    """Returns the late and dead records. Their numbers must match ``counts``."""
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    table_dead: Sequence[DeadLetterSpool] = ()
    """Invalid values of tables."""
    state_rows: int = 0
    state_bytes: int = 0
    sent: int = 0
    """For a real-time flow: the number of rows that Spark has already written to the topic. ``pieces`` does not include
    them.
    """


def ranges_of(state: FlowState, planned: Mapping[str, Mapping[str, int]]) -> Ranges:
    """Return, for each input, the range from the end of the last batch to the end that Spark planned."""
    last = state.last.inputs if state.last else {}
    starts = {source.log: source.starts for source in state.generation.inputs}
    planned_ranges: Ranges = {}
    for log, ends in planned.items():
        last_ends = {number: end for number, (_, end) in last.get(log, {}).items()}
        # A new partition is read from its start.
        planned_ranges[log] = {
            number: (last_ends.get(number, starts.get(log, {}).get(number, 0)), end)
            for number, end in ends.items()
        }
    for log, ranges in last.items():
        # If Spark planned no offsets for an input, the position in that input does not change.
        planned_ranges.setdefault(log, {number: (end, end) for number, (_, end) in ranges.items()})
    return planned_ranges


def newest_at_start(generation: Generation) -> dict[str, dict[str, int]]:
    """Return the newest event times before the generation's first records, which are known if records were deleted."""
    times = {
        source.topic: {
            number: head.newest_us for number, head in source.deleted.items() if head.newest_us is not None
        }
        for source in generation.inputs
    }
    return {topic: by_partition for topic, by_partition in times.items() if by_partition}


def next_newest(state: FlowState, result: BatchResult) -> dict[str, dict[str, int]]:
    """Return the newest event times after the batch, by input topic and partition."""
    before = state.last.next_newest_us if state.last else newest_at_start(state.generation)
    newest = {topic: dict(times) for topic, times in before.items()}
    for topic, counts in result.counts.items():
        times = newest.setdefault(topic, {})
        for number, time_us in counts.newest_us.items():
            times[str(number)] = max(times.get(str(number), time_us), time_us)
    for source in state.generation.inputs:
        # The batch may have passed the end of the deleted records, and of what is known about them.
        for partition, head in source.deleted.items():
            if result.inputs.get(source.log, {}).get(partition, (0, 0))[1] >= head.end:
                times = newest.setdefault(source.topic, {})
                times[partition] = max(times.get(partition, head.newest_at_end_us), head.newest_at_end_us)
    return {topic: times for topic, times in newest.items() if times}


def commit_batch(
    cluster: Cluster,
    writer: TransactionalWriter,
    flow: Flow,
    state: FlowState,
    result: BatchResult,
    reached_us: Mapping[str, int] | None = None,
) -> Batch:
    """Commit the batch. If the counts do not match the records, raise ``Miscounted`` and commit nothing.

    ``reached_us`` has the event time that each input has reached, if the flow rejects late events.
    """
    generation = state.generation
    newest_event_us = dict(state.last.seen_us) if state.last else {}
    for topic, counts in result.counts.items():
        if counts.seen_us is not None:
            newest_event_us[topic] = max(newest_event_us.get(topic, counts.seen_us), counts.seen_us)
    reached = newest_event_us if reached_us is None else reached_us
    before_us = state.last.next_newest_us if state.last else newest_at_start(generation)
    last_outputs = state.last.outputs.get(generation.output, {}) if state.last else {}
    starts = {number: end for number, (_, end) in last_outputs.items()} or generation.output_starts
    if state.stable and not state.stable_ends:
        state.stable_ends = _written_ends(cluster, state.stable)
    writer.begin()
    try:
        sent, keyless = _send_rows(writer, flow, state, result)
        writer.send(_side_records(flow, result, generation))
        writer.flush()
        ends = (
            cluster.ends(generation.output, committed=False)
            if sent
            else {int(number): start for number, start in starts.items()}
        )
        outputs = {
            generation.output: {
                str(number): (starts.get(str(number), 0), end) for number, end in ends.items()
            }
        }
        stable_ends = _written_ends(cluster, state.stable) if state.stable and sent else state.stable_ends
        if state.stable:
            outputs[state.stable] = {
                number: (state.stable_ends.get(number, 0), end) for number, end in stable_ends.items()
            }
        batch = Batch(
            flow=flow.name,
            generation=generation.generation,
            batch=result.number,
            inputs=result.inputs,
            tables=result.tables,
            outputs=outputs,
            watermark_us=result.watermark_us,
            next_watermark_us=_latest(result.watermark_us, next_watermark(flow.late_policies, reached)),
            seen_us=newest_event_us,
            rows_in=sum(counts.rows for counts in result.counts.values()),
            rows_out=sent,
            late=sum(counts.late for counts in result.counts.values()),
            dead=sum(counts.dead for counts in result.counts.values()),
            fingerprint=generation.fingerprint,
            keyless=keyless,
            table_dead=sum(map(len, result.table_dead)),
            totals=_totals(state, result, sent, keyless),
            generation_offset=state.generation_offset,
            owner_offset=state.owner_offset,
            newest_us=before_us if reached_us is not None else {},
            next_newest_us=next_newest(state, result) if reached_us is not None else {},
            state_rows=result.state_rows,
            state_bytes=result.state_bytes,
            committed_ms=time.time_ns() // 1_000_000,
        )
        key, value = encode(batch)
        writer.send([OutgoingRecord(state.progress_topic, key, value)])
        writer.commit()
        state.stable_ends = stable_ends
    except BaseException as error:
        writer.abort(purge=True)
        if isinstance(error, LogError) and _is_too_large(error):
            raise _row_too_large(flow, generation, result) from error
        raise
    return batch


def _written_ends(cluster: Cluster, topic: str) -> dict[str, int]:
    return {str(number): end for number, end in cluster.ends(topic, committed=False).items()}


def _is_too_large(error: LogError) -> bool:
    return error.kafka_error is not None and error.kafka_error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def _row_too_large(flow: Flow, generation: Generation, result: BatchResult) -> RowTooLarge:
    """Return an error that names the largest row. This reads the rows of the batch again."""
    size, key = 0, ""
    for piece in result.pieces():
        sizes = pc.fill_null(pc.binary_length(piece.column("value")), 0)
        largest = pc.max(sizes).as_py() or 0
        if largest > size:
            size, key = largest, piece.column("key")[pc.index(sizes, largest).as_py()].as_py()
    topic = generation.output
    return RowTooLarge(
        f"flow {flow.name}: the log rejected a batch of rows for topic {topic}, because a row is too large",
        detail=f"the largest row has {size} bytes and the key {key!r:.100}",
        hint=f"derive smaller rows, or: headrace topic alter {topic} --set max.message.bytes={size * 2}",
    )


def _send_rows(
    writer: TransactionalWriter, flow: Flow, state: FlowState, result: BatchResult
) -> tuple[int, int]:
    """Send rows to the topics, and rows without a key to the dead letters. Returns both numbers."""
    generation, sent, keyless = state.generation, result.sent, 0
    message = f"batch {result.number} of generation {generation.generation}: the row has no key"
    headers = Rejection(Reason.KEY, message, generation.generation).headers()
    for piece in result.pieces():
        rows = piece
        if piece.column("key").null_count:
            is_keyless = pc.is_null(piece.column("key"))
            rows = piece.filter(pc.invert(is_keyless))
            values = piece.filter(is_keyless).column("value").to_pylist()
            writer.send(
                OutgoingRecord(flow.dead_topic, None, None if value is None else value.encode(), headers)
                for value in values
            )
            keyless += len(values)
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        writer.send_rows(generation.output, keys, values)
        if state.stable:
            writer.send_rows(state.stable, keys, values)
        sent += rows.num_rows
    return sent, keyless


def _totals(state: FlowState, result: BatchResult, sent: int, keyless: int) -> Totals:
    previous = state.last.totals if state.last else Totals()
    return Totals(
        rows_in=previous.rows_in + sum(counts.rows for counts in result.counts.values()),
        rows_out=previous.rows_out + sent,
        late=previous.late + sum(counts.late for counts in result.counts.values()),
        dead=previous.dead + sum(counts.dead for counts in result.counts.values()),
        keyless=previous.keyless + keyless,
        table_dead=previous.table_dead + sum(map(len, result.table_dead)),
    )


def _latest(previous: int | None, current: int | None) -> int | None:
    watermarks = [watermark for watermark in (previous, current) if watermark is not None]
    return max(watermarks, default=None)


def _side_records(flow: Flow, result: BatchResult, generation: Generation) -> Iterator[OutgoingRecord]:
    record_counts: Counter[str] = Counter()
    for record in result.rejected():
        record_counts["late" if record.reason is None else "dead"] += 1
        if record.reason is None:
            yield late_record(flow, record, generation, result.number)
        else:
            yield dead_letter(flow, record, generation)
    counted = (
        sum(counts.late for counts in result.counts.values()),
        sum(counts.dead for counts in result.counts.values()),
    )
    if (record_counts["late"], record_counts["dead"]) != counted:
        raise Miscounted(
            f"flow {flow.name}: batch {result.number} counted {counted[0]} late and {counted[1]} dead records, but"
            f" {record_counts['late']} late and {record_counts['dead']} dead records exist",
            hint="no action is needed: Headrace counts the batch again",
        )
    yield from (dead_letter(flow, record, generation) for spool in result.table_dead for record in spool)
