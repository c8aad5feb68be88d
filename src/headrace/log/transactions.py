"""What a partition knows of transactions: which are open, which were aborted, and up to where all is settled.

A transaction opens in a partition with its producer's first transactional batch and ends with a marker. A reader that
wants only committed records stops at the *last stable offset*, where the earliest open transaction begins, and is
told which of the transactions below it were aborted. A marker counts once it is durable: until then its transaction
holds readers up as if it were open, because a power loss could take the marker back.

Invariants: open transactions are kept in the order of their first offsets, aborted ones in that of their last.
Both are part of the state snapshots, and come back from the batches behind the newest snapshot after a crash.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace.errors import StorageError
from headrace.records import BatchHeader

__all__ = [
    "AbortedTransaction",
    "InvalidTransactionState",
    "OpenTransaction",
    "TooManyTransactions",
    "Transactions",
]


class InvalidTransactionState(StorageError):
    code = "HR-LOG-TRANSACTION-STATE"

    def __init__(self, producer_id: int, first_offset: int) -> None:
        super().__init__(
            f"producer {producer_id} sent a batch outside of its transaction, which is open since offset "
            f"{first_offset}",
            hint="end the transaction first, or send the batch as part of it",
        )


class TooManyTransactions(StorageError):
    code = "HR-LOG-TRANSACTIONS-MAX"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"the partition has {limit} {what} transactions, and takes no more",
            hint="end those that are open; aborted ones are forgotten when retention deletes their records",
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
    """Where its marker is."""
    stable_offset: int
    """No transaction that ended later begins below it: where a search may stop."""


class Transactions:
    """All transactions of one partition; ``open_max`` and ``aborted_max`` bound what it remembers."""

    def __init__(self, *, open_max: int = 5_000, aborted_max: int = 1_000_000) -> None:
        self.open: dict[int, OpenTransaction] = {}
        self._open_max = open_max
        self._aborted_max = aborted_max
        # Ended, but the marker may not be durable yet: first offset, and where the marker is.
        self._settling: list[tuple[int, int]] = []
        # Columns, because there may be many: 32 bytes for each.
        self._producers = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stables = array("q")

    # Writing

    def check(self, header: BatchHeader) -> None:
        """Whether a producer's batch may be written now."""
        open_one = self.open.get(header.producer_id)
        if open_one is not None:
            if not header.is_transactional:
                raise InvalidTransactionState(header.producer_id, open_one.first_offset)
        elif header.is_transactional:
            if len(self.open) >= self._open_max:
                raise TooManyTransactions("open", self._open_max)
            # Each that is open may come to be aborted, and then there must be room for it.
            if len(self._lasts) + len(self.open) >= self._aborted_max:
                raise TooManyTransactions("aborted", self._aborted_max)

    def note(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """A transactional batch was written."""
        open_one = self.open.get(header.producer_id)
        if open_one is None:
            open_one = OpenTransaction(header.producer_id, header.producer_epoch, base_offset, now_ms)
        elif open_one.producer_epoch == header.producer_epoch:
            return
        self.open[header.producer_id] = replace(open_one, producer_epoch=header.producer_epoch)

    def end(self, producer_id: int, marker_offset: int, *, committed: bool) -> None:
        """A marker was written."""
        ended = self.open.pop(producer_id, None)
        if ended is None:
            return
        self._settling.append((ended.first_offset, marker_offset))
        if not committed:
            earliest = next(iter(self.open.values()), None)
            stable = marker_offset + 1 if earliest is None else earliest.first_offset
            self.restore_aborted(AbortedTransaction(producer_id, ended.first_offset, marker_offset, stable))

    def restore_aborted(self, aborted: AbortedTransaction) -> None:
        for column, value in zip(self._columns(), aborted, strict=True):
            column.append(value)

    def forget_below(self, start_offset: int) -> None:
        """The log begins here now: what was aborted wholly below it is asked for by nobody."""
        gone = bisect_left(self._lasts, start_offset)
        for column in self._columns():
            del column[:gone]

    def forget(self, markers: Collection[int]) -> None:
        """Compaction has left nothing of the transactions that were aborted by these markers."""
        gone = set(markers)
        kept = [one for one in self.aborted() if one.last_offset not in gone]
        for column in (self._producers, self._firsts, self._lasts, self._stables):
            del column[:]
        for one in kept:
            self.restore_aborted(one)

    # Reading

    @property
    def is_empty(self) -> bool:
        return not self.open and not self._lasts

    @property
    def aborted_count(self) -> int:
        return len(self._lasts)

    def first_unstable(self, high_watermark: int) -> int | None:
        """Where the earliest transaction begins whose end is not known to be durable; ``None`` if there is none."""
        settling = self._settling
        settled = 0
        while settled < len(settling) and settling[settled][1] < high_watermark:
            settled += 1
        del settling[:settled]
        first = min((begun for begun, _ in settling), default=None)
        earliest = next(iter(self.open.values()), None)
        if earliest is None:
            return first
        return earliest.first_offset if first is None else min(first, earliest.first_offset)

    def dump_aborted(self) -> bytes:
        """All of them, column by column, big-endian: there may be too many to go through one by one."""
        return b"".join(_swapped(column).tobytes() for column in self._columns())

    def load_aborted(self, raw: bytes) -> None:
        """Take what ``dump_aborted`` gave in the place of what there is."""
        size = len(raw) // len(self._columns())
        for number, column in enumerate(self._columns()):
            del column[:]
            column.extend(_swapped(array("q", raw[size * number : size * (number + 1)])))

    def _columns(self) -> tuple[array[int], ...]:
        return self._producers, self._firsts, self._lasts, self._stables

    def aborted(self) -> Iterator[AbortedTransaction]:
        """All of them, in the order of their markers."""
        return (AbortedTransaction(*row) for row in zip(*self._columns(), strict=True))

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those that have a record or their marker in ``[start, end)``."""
        found = []
        for at in range(bisect_left(self._lasts, start), len(self._lasts)):
            if self._firsts[at] < end:
                found.append(
                    AbortedTransaction(
                        self._producers[at], self._firsts[at], self._lasts[at], self._stables[at]
                    )
                )
            if self._stables[at] >= end:
                break
        return found


def _swapped(column: array[int]) -> array[int]:
    """The same numbers in the other of this machine's byte order and big-endian."""
    copy = array("q", column)
    if sys.byteorder == "little":
        copy.byteswap()
    return copy
