"""Progress records: a flow writes them to a topic with one partition, in the transaction of its rows.

The topic is ``<flow>.progress``. Generations that a rebuild began have their own: ``<flow>.g2.progress``.

A record is JSON. The field ``record`` is one of three types:

``generation``  The first record of every generation, written before any of its batches. It has the fingerprint of the
                function, the input topics, the output topic, the schema of its rows and the latency. A second one
                follows if the generation continues in another output topic.
``batch``       A committed batch. It has the input offsets of the batch per partition, from (inclusive) and to
                (exclusive); the end offsets of the tables that it joined; its output offsets; the event times that
                decided which rows were late; the watermark; and the numbers of input, output, late and dead rows.
``owner``       A driver opened the flow and continues an existing generation. The newest generation or owner record
                names the driver that writes the flow. Every batch has the offset of that record.

The batch record and the rows of the batch are committed in one transaction. So a reader of committed records sees both
or neither. The batches of a generation have no gaps: the inputs of each batch begin where the previous batch ended.

In a generation with latency ``realtime``, each row is written on its own, without a transaction, and at least once. The
batch record follows later and names the input offsets that were processed. The rows of these inputs are below the
output offsets of the record, possibly mixed with later rows. Each row is identified by its *source*.

The source of a row is the one input record from which the row was derived. Each row has a header ``__headrace.source``
with the partition and the offset of that record, for example ``3/1042``. After a crash a flow writes some rows again,
with the same sources. Rows are always written in the order of their source offsets, without gaps. So for each pair of
output partition and input partition, a row is a repeat if its source is not above the highest source so far.
``Sources`` has these highest sources.

The key of a batch record is ``<generation>/<batch>``, of a generation record ``<generation>/-``, and of an owner record
``<generation>/owner``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.model.declarations import Latency

__all__ = [
    "SOURCE_HEADER",
    "Batch",
    "DeletedHead",
    "Digest",
    "Driver",
    "Ends",
    "Generation",
    "Input",
    "InputDigest",
    "Owner",
    "Ranges",
    "Record",
    "Sources",
    "Totals",
    "UnreadableProgress",
    "decode",
    "encode",
    "source_ends",
    "source_key",
    "source_of",
]

Ranges = dict[str, dict[str, tuple[int, int]]]
"""Offsets from (inclusive) and to (exclusive), by topic and partition. JSON needs the partition as text."""
Ends = dict[str, dict[str, int]]
_encoder = msgspec.json.Encoder()


class UnreadableProgress(HeadraceError):
    code = "HR-FLOW-PROGRESS"


class DeletedHead(msgspec.Struct, frozen=True):
    """What an earlier generation had recorded about the deleted records of a partition. Its batches do not begin where
    the partition now begins, so the newest event time is known at the begin and at the end of one batch.
    """

    newest_us: int | None
    """The newest event time before the batch."""
    end: int
    """The end offset of the batch."""
    newest_at_end_us: int
    """The newest event time before ``end``."""
    late: list[int] = []
    """The offsets of the batch's late events that still exist."""


class Input(msgspec.Struct, frozen=True):
    topic: str
    """The topic's name in the app."""
    log: str
    """The topic's name in the log. It differs from ``topic`` if a flow writes the topic and was rebuilt."""
    topic_id: str
    kind: str
    starts: dict[str, int] = {}
    """The first offset of each partition when the generation began."""
    deleted: dict[str, DeletedHead] = {}
    """By partition, what is known about the lateness of the records before and shortly after its start, if records
    were deleted before the generation began.
    """


class Driver(msgspec.Struct, frozen=True):
    """A process that runs the flow."""

    id: str
    """Random; constant for one runner, even if the runner opens the flow several times."""
    host: str
    pid: int
    opened_ms: int


class InputDigest(msgspec.Struct, frozen=True):
    """The declaration of an input topic."""

    schema: list[dict[str, Any]]
    """The fields, as ``headrace.model.schema`` writes them."""
    key: list[str]
    time: str | None
    late_us: int
    kind: str
    upcast: str = ""
    """The digest of the topic's upcasters."""


class Digest(msgspec.Struct, frozen=True):
    """What the fingerprint of a flow is computed from, in parts, so that a message can name the part that changed."""

    plan: str
    """A hash of Spark's plan of the function."""
    version: str = ""
    code: dict[str, str] = {}
    """Hashes of the function's code, of the functions that it calls, and of the values that they read, by name."""
    inputs: dict[str, InputDigest] = {}
    runtime: dict[str, str] = {}
    """Versions and settings that can change the plan or the code without a change of the function."""


class Generation(msgspec.Struct, frozen=True, tag_field="record", tag="generation"):
    app: str
    flow: str
    generation: int
    fingerprint: str
    inputs: list[Input]
    output: str
    """The name of the output topic in the log."""
    output_id: str
    key: list[str]
    schema: list[dict[str, Any]]
    """The schema of the output rows, as ``headrace.model.schema`` writes it."""
    checkpoint: str
    """A random id. It is also in the checkpoint directory, so that a foreign checkpoint is detected."""
    started_ms: int
    reason: str = "first start"
    output_starts: dict[str, int] = {}
    """The first offset of this generation's rows, by partition."""
    latency: Latency = "batch"
    updates: bool | None = None
    """Whether a row replaces the earlier rows of its key, because the function aggregates; None in records of earlier
    releases.
    """
    late: str = ""
    """What the flow does with late events, a ``LateMode``. Empty if no input has an event time, in real time, and in
    generations of earlier releases, which decided by batch what was late.
    """
    has_watermark: bool = False
    """Whether the flow drops state by event time, so that it rejects events before its watermark."""
    driver: Driver | None = None
    """The driver that wrote the record; None in records of earlier releases."""
    continues: int = -1
    """The offset of the generation's previous record in this topic; -1 in its first record. A generation that no longer
    writes the flow's stable topic continues in another topic. Its batches after this record wrote that topic.
    """
    batch_offset: int = -1
    """The offset of the last batch record before this record; -1 if the generation has no batch before it."""
    digest: Digest | None = None
    """The parts of the fingerprint; None in records of earlier releases."""


class Totals(msgspec.Struct, frozen=True):
    """Sums over all batches of the generation so far."""

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
    """The generation's own topic, and the stable topic if the generation writes each row to both."""
    watermark_us: int | None
    """Spark has dropped state before this event time; None before the first watermark. An event before it that is not
    late becomes a dead letter. In a flow that keeps late events, it only shows the progress.
    """
    next_watermark_us: int | None
    """The watermark of the next batch."""
    seen_us: dict[str, int]
    """The latest event time of each input topic so far."""
    rows_in: int
    rows_out: int
    late: int
    dead: int
    fingerprint: str
    keyless: int = 0
    """Number of rows without a key. They cannot be in the output, so they become dead letters."""
    table_dead: int = 0
    """Number of invalid table values. They become dead letters too, and ``rows_in`` does not include them."""
    totals: Totals = Totals()
    generation_offset: int = 0
    """The offset of the batch's generation record in this topic."""
    owner_offset: int = -1
    """The offset of the record that names the batch's driver, in this topic; -1 if unknown."""
    newest_us: dict[str, dict[str, int]] = {}
    """By input topic and partition, the newest event time before the batch. An event of the batch is late if it is too
    far behind this time, or behind an earlier event of the batch in its partition. Empty if the flow keeps late events.
    """
    next_newest_us: dict[str, dict[str, int]] = {}
    """The same for the next batch."""
    state_rows: int = 0
    state_bytes: int = 0
    committed_ms: int = 0


class Owner(msgspec.Struct, frozen=True, tag_field="record", tag="owner"):
    app: str
    flow: str
    generation: int
    driver: Driver
    generation_offset: int
    """The offset of the generation record in this topic."""
    batch_offset: int = -1
    """The offset of the last batch record in this topic; -1 before the first batch."""


Record = Generation | Batch | Owner
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> tuple[bytes, bytes]:
    """Return the key and the value of the record."""
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
            hint="only the flow may write to this topic: run the release that wrote the record, or rebuild the flow",
        ) from error
    return record


SOURCE_HEADER = "__headrace.source"
Sources = dict[str, int]
"""The highest source offset so far, by ``<output partition>/<input partition>``."""
# The pattern limits the digits, so that a partition fits into 32 bits and an offset into 64 bits, as in
# Kafka. After a header with an impossibly large offset, all later rows would count as repeats.
_SOURCE = re.compile(rb"([0-9]{1,9})/([0-9]{1,18})")


def source_of(headers: Iterable[tuple[str, object]] | None) -> tuple[int, int] | None:
    """Return partition and offset of the source; None if no real-time flow wrote the record."""
    for name, value in headers or ():
        if name == SOURCE_HEADER:
            match = _SOURCE.fullmatch(value) if isinstance(value, bytes) else None
            return (int(match[1]), int(match[2])) if match else None
    return None


def source_key(output: int, source: int) -> str:
    """Return the key in ``Sources`` for an output partition and an input partition."""
    return f"{output}/{source}"


def source_ends(sources: Mapping[str, int]) -> dict[int, int]:
    """Return, by input partition, the offset after the last record from which a row was derived."""
    ends: dict[int, int] = {}
    for key, offset in sources.items():
        number = int(key.partition("/")[2])
        ends[number] = max(offset + 1, ends.get(number, 0))
    return ends
