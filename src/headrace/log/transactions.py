"""The transactions of a partition: the open ones, the aborted ones, and the last stable offset.

A transaction opens in a partition with its producer's first transactional batch and ends with a marker. A reader of
committed records stops at the *last stable offset*, where the earliest open transaction begins. The reader also
receives a list of the aborted transactions below that offset. A transaction counts as open until its marker is durable,
because a power loss could lose the marker.

Invariants: open transactions are ordered by first offset, and aborted transactions by marker offset. State snapshots
contain both. After a crash, both are rebuilt from the newest snapshot and the batches after it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.errors import StorageError
from headrace.records import BatchHeader, CorruptRecords, read_marker

__all__ = [
    "AbortedTransaction",
    "InvalidTransactionState",
    "OpenTransaction",
    "TooManyTransactions",
    "TransactionScan",
    "Transactions",
]


class InvalidTransactionState(StorageError):
    code = "HR-LOG-TRANSACTION-STATE"

    def __init__(self, producer_id: int, first_offset: int) -> None:
        super().__init__(
            f"producer {producer_id} sent a non-transactional batch, but its transaction is open since offset "
            f"{first_offset}",
            hint="end the transaction first, or send the batch as part of it",
        )


class TooManyTransactions(StorageError):
    code = "HR-LOG-TRANSACTIONS-MAX"

    def __init__(self, state: str, limit: int) -> None:
        super().__init__(
            f"too many {state} transactions in the partition (limit {limit})",
            hint="end open transactions; aborted transactions are forgotten when retention deletes their records",
        )


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the transaction's marker."""
    stable_offset: int
    """All transactions that end later begin at or above this offset, so a search for lower offsets can stop here."""


class Transactions:
    """All transactions of one partition, limited by ``open_max`` and ``aborted_max``."""

    def __init__(self, *, open_max: int = 5_000, aborted_max: int = 1_000_000) -> None:
        self.open: dict[int, OpenTransaction] = {}
        self._open_max = open_max
        self._aborted_max = aborted_max
        # (first offset, marker offset) of ended transactions whose marker may not be durable yet.
        self._not_durable: list[tuple[int, int]] = []
        # Aborted transactions, stored in columns because there may be many: 32 bytes each.
        self._producers = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stables = array("q")
        self.forgets = 0
        """How often aborted transactions were forgotten. If it changes during a read, the read may contain records of
        such a transaction, and must be repeated.
        """

    # Writing

    def check(self, header: BatchHeader) -> None:
        """Raise an error if the producer's batch must not be written now."""
        transaction = self.open.get(header.producer_id)
        if transaction is not None:
            if not header.is_transactional:
                raise InvalidTransactionState(header.producer_id, transaction.first_offset)
        elif header.is_transactional:
            if len(self.open) >= self._open_max:
                raise TooManyTransactions("open", self._open_max)
            # Every open transaction may be aborted, and then needs an entry here.
            if len(self._lasts) + len(self.open) >= self._aborted_max:
                raise TooManyTransactions("aborted", self._aborted_max)

    def note(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Record that a transactional batch was written."""
        transaction = self.open.get(header.producer_id)
        if transaction is None:
            transaction = OpenTransaction(header.producer_id, header.producer_epoch, base_offset, now_ms)
        elif transaction.producer_epoch == header.producer_epoch:
            return
        self.open[header.producer_id] = replace(transaction, producer_epoch=header.producer_epoch)

    def end(self, producer_id: int, marker_offset: int, *, committed: bool) -> None:
        """Record that a producer's marker was written."""
        ended_transaction = self.open.pop(producer_id, None)
        if ended_transaction is None:
            return
        self._not_durable.append((ended_transaction.first_offset, marker_offset))
        if not committed:
            earliest = next(iter(self.open.values()), None)
            stable = marker_offset + 1 if earliest is None else earliest.first_offset
            self.restore_aborted(
                AbortedTransaction(producer_id, ended_transaction.first_offset, marker_offset, stable)
            )

    def restore_aborted(self, aborted: AbortedTransaction) -> None:
        for column, value in zip(self._columns(), aborted, strict=True):
            column.append(value)

    def forget_below(self, start_offset: int) -> None:
        """Forget the aborted transactions below the log's new start offset."""
        removed = bisect_left(self._lasts, start_offset)
        self.forgets += removed > 0
        for column in self._columns():
            del column[:removed]

    def forget(self, markers: Collection[int]) -> None:
        """Forget the aborted transactions with these marker offsets, because compaction removes them."""
        removed = set(markers)
        self.forgets += 1
        kept = [transaction for transaction in self.aborted() if transaction.last_offset not in removed]
        for column in (self._producers, self._firsts, self._lasts, self._stables):
            del column[:]
        for transaction in kept:
            self.restore_aborted(transaction)

    # Reading

    @property
    def is_empty(self) -> bool:
        return not self.open and not self._lasts

    @property
    def aborted_count(self) -> int:
        return len(self._lasts)

    def first_unstable(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction without a durable marker, or ``None``."""
        not_durable = self._not_durable
        durable_count = 0
        while durable_count < len(not_durable) and not_durable[durable_count][1] < high_watermark:
            durable_count += 1
        del not_durable[:durable_count]
        first = min((first_offset for first_offset, _ in not_durable), default=None)
        earliest = next(iter(self.open.values()), None)
        if earliest is None:
            return first
        return earliest.first_offset if first is None else min(first, earliest.first_offset)

    def dump_aborted(self) -> bytes:
        """Encode the aborted transactions column by column, big-endian. There may be too many to encode one by one."""
        return b"".join(_big_endian(column).tobytes() for column in self._columns())

    def load_aborted(self, raw: bytes) -> None:
        """Replace the aborted transactions with those that ``dump_aborted`` encoded."""
        size = len(raw) // len(self._columns())
        for number, column in enumerate(self._columns()):
            del column[:]
            column.extend(_big_endian(array("q", raw[size * number : size * (number + 1)])))

    def _columns(self) -> tuple[array[int], ...]:
        return self._producers, self._firsts, self._lasts, self._stables

    def aborted(self) -> Iterator[AbortedTransaction]:
        """Iterate over the aborted transactions in the order of their markers."""
        return (AbortedTransaction(*row) for row in zip(*self._columns(), strict=True))

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that may have a record or a marker in ``[start, end)``."""
        overlapping = []
        for index in range(bisect_left(self._lasts, start), len(self._lasts)):
            if self._firsts[index] < end:
                overlapping.append(
                    AbortedTransaction(
                        self._producers[index], self._firsts[index], self._lasts[index], self._stables[index]
                    )
                )
            if self._stables[index] >= end:
                break
        return overlapping


def _big_endian(column: array[int]) -> array[int]:
    """Convert between this machine's byte order and big-endian."""
    copy = array("q", column)
    if sys.byteorder == "little":
        copy.byteswap()
    return copy


Buffer = bytes | bytearray | memoryview


class TransactionScan:
    """Finds the batches of aborted transactions and the unneeded markers in a scan of a partition.

    A marker is unneeded when all records of its transaction were removed. To find unneeded markers, the scan must begin
    at the first batch of the log. To find only the batches of aborted transactions, it may begin anywhere.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        # Producers inside an aborted transaction, and whether the scan has seen a batch of that transaction.
        self._aborting: dict[int, bool] = {}
        self._committing: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of a batch belong to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._advance(header.base_offset)
        if header.producer_id in self._aborting:
            self._aborting[header.producer_id] = True
            return True
        self._committing.add(header.producer_id)
        return False

    def is_unneeded(self, header: BatchHeader, *, committed: bool) -> bool:
        """Whether the marker is unneeded: the scan has seen no batch of its transaction."""
        self._advance(header.base_offset)
        if not committed:
            return not self._aborting.pop(header.producer_id, False)
        if header.producer_id not in self._committing:
            return True
        self._committing.remove(header.producer_id)
        return False

    def is_unneeded_marker(self, batch: Buffer, header: BatchHeader) -> bool:
        """Decode the marker from its batch; returns ``is_unneeded`` for it."""
        marker = read_marker(batch)
        if marker is None:
            raise CorruptRecords(f"the control batch at offset {header.base_offset} is not a marker")
        return self.is_unneeded(header, committed=marker.committed)

    def _advance(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            self._aborting.setdefault(self._upcoming.pop().producer_id, False)
