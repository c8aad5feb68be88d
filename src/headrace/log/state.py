"""State snapshots: the producers, transactions and leader epochs of a partition at one offset.

With a snapshot, a broker start reads only the batches after it.

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
           aborted transactions, column by column: a producer ids (8 each), a first offsets (8), a offsets of markers
           (8), a stable offsets (8)
    …   4  CRC-32C of everything before

Files of the first version ("HRSTATE1") can be read as well. They have 24 bytes before the epochs, no transactions, no
awaited sequence and no coordinator epoch.

Invariant: the state is the result of all batches below the offset in the file name. If a crash tears the file, its CRC
does not match. The start then uses the next older snapshot, or none, and scans the batches after it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.checksum import crc32c
from headrace.files import Files
from headrace.log.producers import Producer, Producers, RememberedBatch
from headrace.log.segment import write_whole
from headrace.log.transactions import OpenTransaction, Transactions

__all__ = [
    "STATE_SUFFIX",
    "Epochs",
    "PartitionState",
    "StateFiles",
    "dump_state",
    "load_state",
    "new_state",
    "state_name",
]

STATE_SUFFIX = ".state"
_MAGIC = b"HRSTATE2"
_MAGIC_V1 = b"HRSTATE1"
_HEAD = struct.Struct(">8sqIIII")
_HEAD_V1 = struct.Struct(">8sqII")
_EPOCH = struct.Struct(">iq")
_PRODUCER = struct.Struct(">qhqiiB")
_PRODUCER_V1 = struct.Struct(">qhqB")
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
    encoded = bytearray(_HEAD.pack(_MAGIC, state.offset, *counts))
    for epoch, start in epochs:
        encoded += _EPOCH.pack(epoch, start)
    for producer in state.producers:
        awaited = _NONE if producer.awaited_sequence is None else producer.awaited_sequence
        encoded += _PRODUCER.pack(
            producer.producer_id,
            producer.epoch,
            producer.seen_ms,
            awaited,
            producer.coordinator_epoch,
            len(producer.batches),
        )
        for batch in producer.batches:
            encoded += _BATCH.pack(
                batch.first_sequence,
                batch.last_sequence,
                batch.base_offset,
                batch.last_offset,
                batch.timestamp,
            )
    for transaction in transactions.open.values():
        encoded += _OPEN.pack(
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.first_offset,
            transaction.since_ms,
        )
    encoded += transactions.dump_aborted()
    encoded += _CRC.pack(crc32c(bytes(encoded)))
    return bytes(encoded)


def load_state(files: Files, path: Path, offset: int) -> PartitionState | None:
    """Load the state from the file; ``None`` if the file is damaged."""
    file = files.open(path)
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    if len(raw) < _HEAD_V1.size + _CRC.size:
        return None
    if _CRC.unpack_from(raw, len(raw) - _CRC.size)[0] != crc32c(memoryview(raw)[: -_CRC.size]):
        return None
    if raw[: len(_MAGIC)] == _MAGIC:
        _, file_offset, epoch_count, producer_count, open_count, aborted_count = _HEAD.unpack_from(raw)
        at = _HEAD.size
    elif raw[: len(_MAGIC)] == _MAGIC_V1:
        _, file_offset, epoch_count, producer_count = _HEAD_V1.unpack_from(raw)
        open_count = aborted_count = 0
        at = _HEAD_V1.size
    else:
        return None
    if file_offset != offset:
        return None
    state = new_state(offset)
    for _ in range(epoch_count):
        state.epochs.entries.append(_EPOCH.unpack_from(raw, at))
        at += _EPOCH.size
    for _ in range(producer_count):
        at = _load_producer(state.producers, raw, at)
    for _ in range(open_count):
        transaction = OpenTransaction(*_OPEN.unpack_from(raw, at))
        state.transactions.open[transaction.producer_id] = transaction
        at += _OPEN.size
    state.transactions.load_aborted(raw[at : at + _ABORTED_SIZE * aborted_count])
    return state


def _load_producer(producers: Producers, raw: bytes, at: int) -> int:
    if raw[: len(_MAGIC)] == _MAGIC:
        producer_id, epoch, seen_ms, awaited, coordinator_epoch, count = _PRODUCER.unpack_from(raw, at)
        at += _PRODUCER.size
    else:
        producer_id, epoch, seen_ms, count = _PRODUCER_V1.unpack_from(raw, at)
        awaited = coordinator_epoch = _NONE
        at += _PRODUCER_V1.size
    producer = Producer(producer_id, epoch, seen_ms, None if awaited == _NONE else awaited, coordinator_epoch)
    for _ in range(count):
        producer.remember(RememberedBatch(*_BATCH.unpack_from(raw, at)))
        at += _BATCH.size
    producers.restore(producer)
    return at


class Epochs:
    """Leader epochs of a partition: the offset at which each run of the broker began to write.

    A client may have read an unsynced tail that the log then lost in a crash. The client requests the end offset of the
    epoch it last read, and continues there.
    """

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.entries = entries or []
        self.newest = -1
        """The epoch of the last ``note``. An append with the same epoch can skip the call."""

    def note(self, epoch: int, start_offset: int) -> None:
        """Record that a batch of ``epoch`` was written at ``start_offset``."""
        if not self.entries or self.entries[-1][0] < epoch:
            self.entries.append((epoch, start_offset))
        self.newest = epoch

    def truncate(self, start_offset: int, end_offset: int) -> None:
        """Remove the epochs that have no offset in the log."""
        remaining = [entry for entry in self.entries if entry[1] < end_offset]
        while len(remaining) > 1 and remaining[1][1] <= start_offset:
            remaining.pop(0)
        if remaining and remaining[0][1] < start_offset:
            remaining[0] = (remaining[0][0], start_offset)
        self.entries = remaining
        self.newest = -1

    def end_of(self, epoch: int, current: int, end_offset: int) -> tuple[int, int]:
        """Return the last epoch at or below ``epoch`` and its end offset; (-1, -1) if unknown."""
        if epoch == current:
            return current, end_offset
        if epoch > current or epoch < 0:
            return -1, -1
        last_epoch = -1
        for entry_epoch, start in self.entries:
            if entry_epoch > epoch:
                return (last_epoch, start) if last_epoch >= 0 else (epoch, start)
            last_epoch = entry_epoch
        return (last_epoch, end_offset) if last_epoch >= 0 else (-1, -1)


_SNAPSHOTS_RETAINED = 2


class StateFiles:
    """The snapshot files of a partition. Removes those that a start no longer needs.

    A snapshot is written when a segment is sealed, before the batches that it covers are synced. A power loss can lose
    these batches, and then the snapshot is useless. So the two newest snapshots below the synced offset are always
    retained.
    """

    def __init__(self, files: Files, directory: Path, offsets: list[int]) -> None:
        self._files = files
        self._directory = directory
        self._offsets = sorted(offsets)
        self._written = 0

    def write(self, state: PartitionState, synced_offset: int) -> None:
        """Add a snapshot and remove those that no start will need. The caller must sync the directory."""
        self._write(state)
        if state.offset not in self._offsets:
            self._offsets.append(state.offset)
        # The file name of a snapshot at exactly the synced offset may not be durable yet, so it does not count.
        below = [offset for offset in self._offsets if offset < synced_offset]
        for offset in below[:-_SNAPSHOTS_RETAINED]:
            self._files.remove(self._directory / state_name(offset))
            self._offsets.remove(offset)

    def replace_all(self, state: PartitionState) -> None:
        """Add a snapshot and remove all others, because they are no longer true.

        The caller must sync the directory before it changes the log: until then a crash can restore an older snapshot.
        """
        self._write(state)
        for offset in self._offsets:
            if offset != state.offset:
                self._files.remove(self._directory / state_name(offset))
        self._offsets = [state.offset]

    def _write(self, state: PartitionState) -> None:
        write_whole(self._files, self._directory / state_name(state.offset), dump_state(state))
        self._written += 1

    def newest(self, end_offset: int) -> tuple[int, int] | None:
        below = [offset for offset in self._offsets if offset <= end_offset]
        return (self._written, max(below)) if below else None

    def has_snapshot_between(self, first: int, last: int) -> bool:
        return any(first <= offset <= last for offset in self._offsets)
