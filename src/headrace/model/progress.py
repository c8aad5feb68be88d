"""What a flow notes in the log beside its rows, in the same transaction: ``<flow>.progress``, one partition.

Two kinds of record, both JSON, told apart by ``record``:

``generation``  begins a generation: the flow as it was then (fingerprint of its function, its inputs as topics of the
                log, its output topic and the schema of its rows, its latency). The first record of every generation,
                written before any of its batches.
``batch``       one batch that is committed: which input offsets it consumed, from (inclusive) and to (exclusive) per
                partition; through which offsets it knew the tables it reads; which output offsets it occupies; the
                watermark that decided what was late; how many rows came, went, were late, were dead.

A batch's record and its rows are committed together, so what has no record has no rows that a reader of committed
records can see. Batches of a generation follow each other without a gap: the inputs of one begin where those of the
last one ended.

In a generation of latency ``realtime`` rows are written by themselves, at least once, and a record of a batch follows
later: it says which input offsets are done. Their rows are below the output offsets that it names, perhaps with rows
of what comes next among them; ``headrace.model.source`` tells each by its own.

Keys are ``<generation>/<batch>`` (a generation's record has batch ``-``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.model.flow import Latency

__all__ = [
    "Batch",
    "Ends",
    "Generation",
    "Input",
    "Ranges",
    "Totals",
    "UnreadableProgress",
    "decode",
    "encode",
]

Ranges = dict[str, dict[str, tuple[int, int]]]
"""Per topic of the log and partition (as text, since it is JSON): from, inclusive, and to, exclusive."""
Ends = dict[str, dict[str, int]]


class UnreadableProgress(HeadraceError):
    code = "HR-FLOW-PROGRESS"


class Input(msgspec.Struct, frozen=True):
    topic: str
    """As the app names it."""
    log: str
    """As the log names it; differs where the flow that writes it is past its first generation."""
    topic_id: str
    kind: str
    starts: dict[str, int] = {}
    """The first offset per partition that was there when the generation began."""


class Generation(msgspec.Struct, frozen=True, tag_field="record", tag="generation"):
    app: str
    flow: str
    generation: int
    fingerprint: str
    inputs: list[Input]
    output: str
    """The topic of the log that this generation writes."""
    output_id: str
    key: list[str]
    schema: list[dict[str, Any]]
    """The output rows, as ``headrace.model.schema_json`` writes it."""
    checkpoint: str
    """Random; also written into the checkpoint directory, so that another one is recognised."""
    started_ms: int
    reason: str = "first start"
    output_starts: dict[str, int] = {}
    """Where its rows begin, per partition."""
    latency: Latency = "batch"


class Totals(msgspec.Struct, frozen=True):
    """Over all batches of the generation so far."""

    rows_in: int = 0
    rows_out: int = 0
    late: int = 0
    dead: int = 0
    keyless: int = 0
    table_dead: int = 0


class Batch(msgspec.Struct, frozen=True, tag_field="record", tag="batch"):
    flow: str
    generation: int
    batch: int
    inputs: Ranges
    tables: Ends
    outputs: Ranges
    watermark_us: int | None
    """Rows with an earlier event time were late in this batch; None before there is one."""
    next_watermark_us: int | None
    """The same for the batch after it."""
    seen_us: dict[str, int]
    """The latest event time per input topic so far, which the next watermark follows from."""
    rows_in: int
    rows_out: int
    late: int
    dead: int
    fingerprint: str
    keyless: int = 0
    """Rows without a key, which have no place in the output; they are among the dead letters."""
    table_dead: int = 0
    """Values of the tables that it reads that do not fit; they are dead letters too, and not among the rows in."""
    totals: Totals = Totals()
    generation_offset: int = 0
    """Where in this topic the record of its generation is."""
    state_rows: int = 0
    state_bytes: int = 0
    committed_ms: int = 0


_decoder = msgspec.json.Decoder(Generation | Batch)
_encoder = msgspec.json.Encoder()


def encode(record: Generation | Batch) -> tuple[bytes, bytes]:
    """Key and value."""
    batch = record.batch if isinstance(record, Batch) else "-"
    return f"{record.generation}/{batch}".encode(), _encoder.encode(record)


def decode(value: bytes, *, where: str) -> Generation | Batch:
    try:
        record: Generation | Batch = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableProgress(
            f"{where} is not a progress record of this release: {error}",
            hint="only the flow itself may write to this topic: run the release that wrote it, or rebuild the flow",
        ) from error
    return record
