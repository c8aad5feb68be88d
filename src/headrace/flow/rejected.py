"""Rejected records, which a batch does not pass to the flow's function: late records and dead records.

A dead record does not fit its schema. The plan of a batch counts the rejected records. If the count is not zero, the
input of the batch is read again to find them. It is read in pieces of limited size, so that memory remains bounded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.client.transactional_writer import OutgoingRecord
from headrace.flow.codec.codec import Decoder
from headrace.flow.inputs import count_records, history, newest_of, observed_counts
from headrace.flow.lateness import Lateness, without_lateness
from headrace.model.declarations import Flow
from headrace.model.progress import Generation, Ranges
from headrace.model.rejection import Reason, Rejection

__all__ = [
    "LATE_HEADER",
    "Counts",
    "DeadLetterSpool",
    "InputCounter",
    "RejectedRecord",
    "dead_letter",
    "late_record",
    "read_rejected",
    "rejected_record",
]

LATE_HEADER = "__headrace.late"
"""The header of a record in the topic of late events that has the note about it."""
_PIECE_BYTES = 16 * 1024 * 1024
_MEMORY_BYTES_MAX = 4 << 20
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A late record, or a dead record if ``reason`` is set."""

    log: str
    """The topic's name in the log."""
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: Reason | None
    message: str | None
    event_us: int | None
    newest_us: int | None = None
    """The newest event time before the record in its partition; None if the flow keeps late records."""


def read_rejected(
    spark: SparkSession,
    cluster: Cluster,
    decoder: Decoder,
    log: str,
    ranges: Mapping[str, tuple[int, int]],
    average_bytes: int,
    lateness: Lateness | None = None,
    *,
    with_late_content: bool = False,
) -> Iterator[RejectedRecord]:
    """Yield the rejected records in the order of partitions and offsets. Without ``with_late_content``, a late record
    has no key and no value.
    """
    step = max(1, _PIECE_BYTES // max(1, average_bytes))
    lateness = None if lateness is None else lateness.fork()
    for number, (low, high) in sorted(ranges.items(), key=lambda item: int(item[0])):
        for begin in range(low, high, step):
            piece_ranges = {number: (begin, min(high, begin + step))}
            decoded = decoder.decode(history(spark, cluster, log, piece_ranges))
            marked = without_lateness(decoded) if lateness is None else lateness.add_columns(decoded)
            newest = Observation()
            marked = marked.observe(newest, F.max("event_us").alias("newest_us"))
            dead = F.col("reason").isNotNull() | F.col("behind")
            has_content = dead | F.lit(with_late_content)
            content = [F.when(has_content, F.col(name)).alias(name) for name in ("key", "value")]
            names = ("partition", "offset", "reason_code", "reason", "event_us", "newest_us", "behind")
            rejected = marked.where(F.col("late") | dead).select(*map(F.col, names), *content)
            for row in rejected.toArrow().sort_by("offset").to_pylist():
                yield rejected_record(log, row)
            if lateness is not None:
                _advance(lateness, int(number), observed_counts(newest).get("newest_us"))


def _advance(lateness: Lateness, partition: int, newest_us: int | None) -> None:
    """Continue with the next records of the partition."""
    if newest_us is not None:
        known = lateness.start.get(partition, newest_us)
        lateness.load({**lateness.start, partition: max(known, newest_us)})


def rejected_record(log: str, row: Mapping[str, Any]) -> RejectedRecord:
    """Convert a row of ``Decoder.decode``, with or without the columns of ``Lateness.add_columns``."""
    code, message = row["reason_code"], row["reason"]
    reason = None if code is None else Reason(code)
    if reason is None and row.get("behind"):
        reason, message = Reason.BEHIND, "the event is older than the watermark of the flow, but not late"
    return RejectedRecord(
        log,
        *(row["partition"], row["offset"], row["key"], row["value"]),
        reason=reason,
        message=message,
        event_us=row["event_us"],
        newest_us=row.get("newest_us"),
    )


def late_record(flow: Flow, record: RejectedRecord, generation: Generation, batch: int) -> OutgoingRecord:
    """Return the record for the topic of late events: the late record (``late="side"``), or only its location."""
    note = msgspec.json.encode(
        {
            "topic": record.log,
            "partition": record.partition,
            "offset": record.offset,
            "event_us": record.event_us,
            "newest_us": record.newest_us,
            "generation": generation.generation,
            "batch": batch,
        }
    )
    if generation.late == "side":
        return OutgoingRecord(flow.late_topic, record.key, record.value, ((LATE_HEADER, note),))
    key = f"{record.log}/{record.partition}/{record.offset}".encode()
    return OutgoingRecord(flow.late_topic, key, note)


def dead_letter(flow: Flow, record: RejectedRecord, generation: Generation) -> OutgoingRecord:
    assert record.reason is not None
    topic_id = next((source.topic_id for source in generation.inputs if source.log == record.log), "")
    rejection = Rejection(
        record.reason,
        record.message or "",
        generation.generation,
        record.log,
        topic_id,
        record.partition,
        record.offset,
    )
    return OutgoingRecord(flow.dead_topic, record.key, record.value, rejection.headers())


class DeadLetterSpool:
    """A buffer for dead letters. It moves to a temporary file when it grows.

    A table is read between batches and can have any number of invalid values. The buffer stores them until a batch
    commits them. If a batch is retried, it reads the buffer again. Not thread-safe.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES_MAX)  # noqa: SIM115 - closed by close()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, records: Iterable[RejectedRecord]) -> None:
        self._file.seek(0, 2)
        for record in records:
            encoded = msgspec.msgpack.encode(record)
            self._file.write(len(encoded).to_bytes(_LENGTH_BYTES, "big"))
            self._file.write(encoded)
            self._count += 1

    def __iter__(self) -> Iterator[RejectedRecord]:
        self._file.seek(0)
        while length := self._file.read(_LENGTH_BYTES):
            encoded = self._file.read(int.from_bytes(length, "big"))
            yield msgspec.msgpack.decode(encoded, type=RejectedRecord)

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._count = 0

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the records of one input in one batch."""

    rows: int = 0
    late: int = 0
    dead: int = 0
    bytes: int = 0
    seen_us: int | None = None
    """The greatest event time."""
    newest_us: Mapping[int, int] = field(default_factory=dict)
    """The greatest event time by partition, if the flow does not keep late records."""

    @classmethod
    def of(cls, plan_counts: Mapping[str, Any], lateness: Lateness | None = None) -> Counts:
        return cls(
            rows=plan_counts["rows"],
            late=plan_counts["late"],
            dead=plan_counts["dead"],
            bytes=plan_counts.get("bytes") or 0,
            seen_us=plan_counts.get("seen_us"),
            newest_us=newest_of(plan_counts, lateness),
        )

    @classmethod
    def if_plausible(
        cls, plan_counts: Mapping[str, Any], offsets: int, lateness: Lateness | None = None
    ) -> Counts | None:
        """Return the counts of a plan that read this number of offsets; None if the counts cannot be correct.

        Counts can be wrong in two ways. A plan can skip an input that cannot contribute rows, for example if the other
        side of a join is empty. And if an executor is lost, the plan reads and counts some records twice.
        """
        if not plan_counts or not 0 < plan_counts["rows"] <= offsets:
            return None
        return cls.of(plan_counts, lateness)

    @property
    def rejected(self) -> int:
        return self.late + self.dead

    @property
    def average_bytes(self) -> int:
        return self.bytes // self.rows if self.rows else 0


class InputCounter:
    """Counts the records that a batch has read.

    The keys of ``decoders``, ``logs`` and ``latenesses`` are the app's names of the input topics; the values of
    ``logs`` are the names in the log. ``latenesses`` has the inputs of which late records are rejected.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        decoders: Mapping[str, Decoder],
        logs: Mapping[str, str],
        latenesses: Mapping[str, Lateness],
        *,
        with_late_content: bool,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._decoders = decoders
        self._logs = logs
        self._latenesses = latenesses
        self._with_late_content = with_late_content

    def counts(self, plan_counts: Mapping[str, Mapping[str, Any]], inputs: Ranges) -> dict[str, Counts]:
        """Return the counts of the plan. If those of an input cannot be correct, count that input again."""
        rejected = {}
        for topic in self._decoders:
            offsets = sum(high - low for low, high in self._ranges(topic, inputs).values())
            lateness = self._latenesses.get(topic)
            plausible = Counts.if_plausible(plan_counts[topic], offsets, lateness) if offsets else Counts()
            rejected[topic] = self._count(topic, inputs) if plausible is None else plausible
        return rejected

    def count(self, inputs: Ranges) -> dict[str, Counts]:
        """Count all inputs with separate queries."""
        return {topic: self._count(topic, inputs) for topic in self._decoders}

    def rejected(self, counts: Mapping[str, Counts], inputs: Ranges) -> Iterator[RejectedRecord]:
        """Yield the late and dead records of all inputs. Reads only inputs with rejected records in ``counts``."""
        for topic, decoder in self._decoders.items():
            if counts[topic].rejected:
                yield from read_rejected(
                    self._spark,
                    self._cluster,
                    decoder,
                    self._logs[topic],
                    self._ranges(topic, inputs),
                    counts[topic].average_bytes,
                    self._latenesses.get(topic),
                    with_late_content=self._with_late_content,
                )

    def _count(self, topic: str, inputs: Ranges) -> Counts:
        ranges = self._ranges(topic, inputs)
        if all(low >= high for low, high in ranges.values()):
            return Counts()
        records = history(self._spark, self._cluster, self._logs[topic], ranges)
        lateness = self._latenesses.get(topic)
        forked = None if lateness is None else lateness.fork()
        return Counts.of(count_records(self._decoders[topic].decode(records), forked), forked)

    def _ranges(self, topic: str, inputs: Ranges) -> dict[str, tuple[int, int]]:
        return inputs.get(self._logs[topic], {})
