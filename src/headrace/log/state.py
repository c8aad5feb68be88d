"""State snapshots: what a partition remembers of its batches (producers, transactions, epochs), so that a start need
not read them all again.

Layout of ``<offset>.state``, written when a segment is sealed and when the log is closed, big-endian:

    0   8  magic "HRSTATE2"
    8   8  offset: the state covers every batch below it
    16  4  number of epochs, e
    20  4  number of producers, p
    24  4  number of open transactions, o
    28  4  number of aborted transactions, a
    32     e times: epoch (4), start offset (8)
           p times: producer id (8), epoch (2), last seen in ms (8), awaited sequence or -1 (4), epoch of the
                    coordinator that wrote the last marker or -1 (4), number of batches b (1),
                    b times: first sequence (4), last sequence (4), base offset (8), last offset (8),
                    timestamp (8)
           o times: producer id (8), epoch (2), first offset (8), open since in ms (8)
           of the aborted ones, column by column: a producer ids (8 each), a first offsets (8), a offsets of markers
           (8), a stable offsets (8)
    …   4  CRC-32C of everything before

Files of the first version ("HRSTATE1") are read as well: they have no transactions, 24 bytes before the epochs, and no
awaited sequence and coordinator epoch.

Invariant: state and log agree at the offset in the name. A crash may leave the file torn: it then fails its
check and the next older one is used, or none, and the batches behind it are walked again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.checksum import crc32c
from headrace.files import Files
from headrace.log.epochs import Epochs
from headrace.log.producers import Producer, Producers, RememberedBatch
from headrace.log.transactions import OpenTransaction, Transactions

__all__ = ["STATE_SUFFIX", "PartitionState", "dump_state", "load_state", "new_state", "state_name"]

STATE_SUFFIX = ".state"
_MAGIC = b"HRSTATE2"
_MAGIC_ONE = b"HRSTATE1"
_HEAD = struct.Struct(">8sqIIII")
_HEAD_ONE = struct.Struct(">8sqII")
_EPOCH = struct.Struct(">iq")
_PRODUCER = struct.Struct(">qhqiiB")
_PRODUCER_ONE = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiqqq")
_OPEN = struct.Struct(">qhqq")
_ABORTED_SIZE = 32
_CRC = struct.Struct(">I")
_NONE = -1


@dataclass(slots=True)
class PartitionState:
    offset: int
    producers: Producers
    epochs: Epochs
    transactions: Transactions


def new_state(offset: int) -> PartitionState:
    transactions = Transactions()
    return PartitionState(offset, Producers(kept=transactions.open), Epochs(), transactions)


def state_name(offset: int) -> str:
    return f"{offset:020d}{STATE_SUFFIX}"


def dump_state(state: PartitionState) -> bytes:
    epochs, transactions = state.epochs.entries, state.transactions
    counts = (len(epochs), len(state.producers), len(transactions.open), transactions.aborted_count)
    out = bytearray(_HEAD.pack(_MAGIC, state.offset, *counts))
    for epoch, start in epochs:
        out += _EPOCH.pack(epoch, start)
    for producer in state.producers:
        awaited = _NONE if producer.awaited_sequence is None else producer.awaited_sequence
        out += _PRODUCER.pack(
            producer.producer_id,
            producer.epoch,
            producer.seen_ms,
            awaited,
            producer.coordinator_epoch,
            len(producer.batches),
        )
        for batch in producer.batches:
            out += _BATCH.pack(
                batch.first_sequence,
                batch.last_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.timestamp,
            )
    for one in transactions.open.values():
        out += _OPEN.pack(one.producer_id, one.producer_epoch, one.first_offset, one.since_ms)
    out += transactions.dump_aborted()
    out += _CRC.pack(crc32c(bytes(out)))
    return bytes(out)


def load_state(files: Files, path: Path, offset: int) -> PartitionState | None:
    """The state in the file, or ``None`` when the file fails its check."""
    file = files.open(path)
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    if len(raw) < _HEAD_ONE.size + _CRC.size:
        return None
    if _CRC.unpack_from(raw, len(raw) - _CRC.size)[0] != crc32c(memoryview(raw)[: -_CRC.size]):
        return None
    if raw[: len(_MAGIC)] == _MAGIC:
        _, found_offset, epoch_count, producer_count, open_count, aborted_count = _HEAD.unpack_from(raw)
        at = _HEAD.size
    elif raw[: len(_MAGIC)] == _MAGIC_ONE:
        _, found_offset, epoch_count, producer_count = _HEAD_ONE.unpack_from(raw)
        open_count = aborted_count = 0
        at = _HEAD_ONE.size
    else:
        return None
    if found_offset != offset:
        return None
    state = new_state(offset)
    for _ in range(epoch_count):
        state.epochs.entries.append(_EPOCH.unpack_from(raw, at))
        at += _EPOCH.size
    for _ in range(producer_count):
        at = _load_producer(state.producers, raw, at)
    for _ in range(open_count):
        one = OpenTransaction(*_OPEN.unpack_from(raw, at))
        state.transactions.open[one.producer_id] = one
        at += _OPEN.size
    state.transactions.load_aborted(raw[at : at + _ABORTED_SIZE * aborted_count])
    return state


def _load_producer(producers: Producers, raw: bytes, at: int) -> int:
    if raw[: len(_MAGIC)] == _MAGIC:
        producer_id, epoch, seen_ms, awaited, coordinator_epoch, count = _PRODUCER.unpack_from(raw, at)
        at += _PRODUCER.size
    else:
        producer_id, epoch, seen_ms, count = _PRODUCER_ONE.unpack_from(raw, at)
        awaited = coordinator_epoch = _NONE
        at += _PRODUCER_ONE.size
    producer = Producer(producer_id, epoch, seen_ms, None if awaited == _NONE else awaited, coordinator_epoch)
    for _ in range(count):
        producer.remember(RememberedBatch(*_BATCH.unpack_from(raw, at)))
        at += _BATCH.size
    producers.restore(producer)
    return at
