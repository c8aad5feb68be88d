"""Which batches belong to aborted transactions, and which markers nobody needs, said while walking up a partition.

A marker is needless when no record of its transaction is left before it. That is judged by the batches that were met,
so the walk must begin at the first batch that is there, or for records alone, anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.log.transactions import AbortedTransaction
from headrace.records import BatchHeader, CorruptRecords, read_marker

__all__ = ["TransactionWalk"]

Buffer = bytes | bytearray | memoryview


class TransactionWalk:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        # Producers inside an aborted transaction, and whether a record of it was met.
        self._aborting: dict[int, bool] = {}
        self._committing: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Of a batch of records: whether they must not be read."""
        if not header.is_transactional:
            return False
        self._advance(header.base_offset)
        if header.producer_id in self._aborting:
            self._aborting[header.producer_id] = True
            return True
        self._committing.add(header.producer_id)
        return False

    def is_needless(self, header: BatchHeader, *, committed: bool) -> bool:
        """Of a marker: whether no record of its transaction was met."""
        self._advance(header.base_offset)
        if not committed:
            return not self._aborting.pop(header.producer_id, False)
        if header.producer_id not in self._committing:
            return True
        self._committing.remove(header.producer_id)
        return False

    def pass_marker(self, batch: Buffer, header: BatchHeader) -> bool:
        """As ``is_needless``, of a marker whose kind is read from it."""
        marker = read_marker(batch)
        if marker is None:
            raise CorruptRecords(f"the control batch at offset {header.base_offset} is no marker")
        return self.is_needless(header, committed=marker.committed)

    def _advance(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            self._aborting.setdefault(self._coming.pop().producer_id, False)
