"""What a flow notes in the log beside its rows, in the same transaction: ``<flow>.progress``, one partition.

Three kinds of record, all JSON, told apart by ``record``:

``generation``  begins a generation: the flow as it was then (fingerprint of its function, its inputs as topics of the
                log, its output topic and the schema of its rows, its latency). The first record of every generation,
                written before any of its batches.
``batch``       one batch that is committed: which input offsets it consumed, from (inclusive) and to (exclusive) per
                partition; through which offsets it knew the tables it reads; which output offsets it occupies; the
                watermark that decided what was late; how many rows came, went, were late, were dead.
``owner``       a driver opened the flow and goes on with a generation that exists. The newest record of a generation
                or an owner names the driver that writes the flow; every batch says where that record is.

A batch's record and its rows are committed together, so what has no record has no rows that a reader of committed
records can see. Batches of a generation follow each other without a gap: the inputs of one begin where those of the
last one ended.

In a generation of latency ``realtime`` rows are written by themselves, at least once, and a record of a batch follows
later: it says which input offsets are done. Their rows are below the output offsets that it names, perhaps with rows
of what comes next among them; ``headrace.model.source`` tells each by its own.

Keys are ``<generation>/<batch>`` (a generation's record has ``-`` as its batch, an owner's ``owner``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.model.flow import Latency

__all__ = [
    "Batch",
    "Driver",
    "Ends",
    "Generation",
    "Input",
    "Owner",
    "Ranges",
    "Record",
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


class Driver(msgspec.Struct, frozen=True):
    """A process that runs the flow."""

    id: str
    """Random; the same for every opening of the flow by one runner."""
    host: str
    pid: int
    opened_ms: int


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
    driver: Driver | None = None
    """The driver that began it; None in records of earlier releases."""


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
    owner_offset: int = -1
    """Where in this topic the record of the driver that wrote it is; -1 if unknown."""
    state_rows: int = 0
    state_bytes: int = 0
    committed_ms: int = 0


class Owner(msgspec.Struct, frozen=True, tag_field="record", tag="owner"):
    app: str
    flow: str
    generation: int
    driver: Driver
    generation_offset: int
    """Where in this topic the record of the generation is."""
    batch_offset: int = -1
    """Where in this topic the record of the last batch is; -1 before the first."""


Record = Generation | Batch | Owner
_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


def encode(record: Record) -> tuple[bytes, bytes]:
    """Key and value."""
    match record:
        case Batch():
            name = str(record.batch)
        case Owner():
            name = "owner"
        case Generation():
            name = "-"
    return f"{record.generation}/{name}".encode(), _encoder.encode(record)


def decode(value: bytes, *, where: str) -> Record:
    try:
        record: Record = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableProgress(
            f"{where} is not a progress record of this release: {error}",
            hint="only the flow itself may write to this topic: run the release that wrote it, or rebuild the flow",
        ) from error
    return record
