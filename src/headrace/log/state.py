"""State snapshots: what a partition remembers of its batches (producers, epochs), so that a start need not
read them all again.

Layout of ``<offset>.state``, written when a segment is sealed and when the log is closed, big-endian:

    0   8  magic "HRSTATE1"
    8   8  offset: the state covers every batch below it
    16  4  number of epochs, e
    20  4  number of producers, p
    24     e times: epoch (4), start offset (8)
           p times: producer id (8), epoch (2), last seen in ms (8), number of batches b (1),
                    b times: first sequence (4), last sequence (4), base offset (8), last offset (8),
                    timestamp (8)
    …   4  CRC-32C of everything before

Invariant: state and log agree at the offset in the name. A crash may leave the file torn: it then fails its
check and the next older one is used, or none, and the batches behind it are walked again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import crc32c

from headrace.files import Files
from headrace.log.epochs import Epochs
from headrace.log.producers import Producer, Producers, RememberedBatch

__all__ = ["STATE_SUFFIX", "PartitionState", "dump_state", "load_state", "state_name"]

STATE_SUFFIX = ".state"
_MAGIC = b"HRSTATE1"
_HEAD = struct.Struct(">8sqII")
_EPOCH = struct.Struct(">iq")
_PRODUCER = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiqqq")
_CRC = struct.Struct(">I")


@dataclass(slots=True)
class PartitionState:
    offset: int
    producers: Producers
    epochs: Epochs


def state_name(offset: int) -> str:
    return f"{offset:020d}{STATE_SUFFIX}"


def dump_state(state: PartitionState) -> bytes:
    out = bytearray(_HEAD.pack(_MAGIC, state.offset, len(state.epochs.entries), len(state.producers)))
    for epoch, start in state.epochs.entries:
        out += _EPOCH.pack(epoch, start)
    for producer in state.producers:
        out += _PRODUCER.pack(producer.producer_id, producer.epoch, producer.seen_ms, len(producer.batches))
        for batch in producer.batches:
            out += _BATCH.pack(
                batch.first_sequence,
                batch.last_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.timestamp,
            )
    out += _CRC.pack(crc32c.crc32c(bytes(out)))
    return bytes(out)


def load_state(files: Files, path: Path, offset: int) -> PartitionState | None:
    """The state in the file, or ``None`` when the file fails its check."""
    file = files.open(path)
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    if len(raw) < _HEAD.size + _CRC.size:
        return None
    if _CRC.unpack_from(raw, len(raw) - _CRC.size)[0] != crc32c.crc32c(memoryview(raw)[: -_CRC.size]):
        return None
    magic, found_offset, epoch_count, producer_count = _HEAD.unpack_from(raw)
    if magic != _MAGIC or found_offset != offset:
        return None
    at = _HEAD.size
    epochs = Epochs()
    for _ in range(epoch_count):
        epochs.entries.append(_EPOCH.unpack_from(raw, at))
        at += _EPOCH.size
    producers = Producers()
    for _ in range(producer_count):
        producer_id, epoch, seen_ms, batch_count = _PRODUCER.unpack_from(raw, at)
        at += _PRODUCER.size
        producer = Producer(producer_id, epoch, seen_ms)
        for _ in range(batch_count):
            producer.batches.append(RememberedBatch(*_BATCH.unpack_from(raw, at)))
            at += _BATCH.size
        producers.restore(producer)
    return PartitionState(offset, producers, epochs)
