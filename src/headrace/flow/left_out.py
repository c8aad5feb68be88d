"""The records of a batch that its function does not see: late ones, and dead ones that do not fit their schema.

A batch counts them on its way. Where there are some, the batch's input is read once more for these alone, in pieces, so
that no more of them is held than a piece, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.flow.decoding import Decoder
from headrace.flow.inputs import history, is_late
from headrace.flow.writer import Side
from headrace.model.flow import Flow

__all__ = ["LeftOut", "dead_letter", "late_note", "read_left_out"]

_ERRORS = "__headrace.errors."
_PIECE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A record of an input that was late, or dead if it has a reason."""

    log: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str | None
    event_us: int | None


def read_left_out(
    spark: SparkSession,
    cluster: Cluster,
    decoder: Decoder,
    log: str,
    ranges: Mapping[str, tuple[int, int]],
    watermark: Column,
    average_bytes: int,
) -> Iterator[LeftOut]:
    """In the order of partitions and offsets. Of a late record, its place only."""
    step = max(1, _PIECE_BYTES // max(1, average_bytes))
    for number, (low, high) in sorted(ranges.items(), key=lambda item: int(item[0])):
        for begin in range(low, high, step):
            piece = {number: (begin, min(high, begin + step))}
            decoded = decoder.decode(history(spark, cluster, log, piece)).withColumn(
                "late", is_late(watermark)
            )
            dead = F.col("reason").isNotNull()
            content = (F.when(dead, F.col(name)).alias(name) for name in ("key", "value"))
            found = decoded.where(F.col("late") | dead).select(
                F.lit(log), "partition", "offset", *content, "reason", "event_us"
            )
            rows = found.toArrow().sort_by("offset")
            for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                yield LeftOut(*row)


def late_note(flow: Flow, record: LeftOut, generation: int, batch: int, watermark_us: int | None) -> Side:
    note = {
        "topic": record.log,
        "partition": record.partition,
        "offset": record.offset,
        "event_us": record.event_us,
        "watermark_us": watermark_us,
        "generation": generation,
        "batch": batch,
    }
    key = f"{record.log}/{record.partition}/{record.offset}".encode()
    return Side(flow.late_topic, key, msgspec.json.encode(note))


def dead_letter(flow: Flow, record: LeftOut) -> Side:
    headers = (
        (f"{_ERRORS}exception", b"ValueDoesNotFit"),
        (f"{_ERRORS}message", (record.reason or "").encode()),
        (f"{_ERRORS}topic", record.log.encode()),
        (f"{_ERRORS}partition", str(record.partition).encode()),
        (f"{_ERRORS}offset", str(record.offset).encode()),
    )
    return Side(flow.dead_topic, record.key, record.value, headers)
