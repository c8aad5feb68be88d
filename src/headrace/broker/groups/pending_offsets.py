"""Offsets that were committed inside transactions which are still open, by transaction, group and partition.

Memory only: what is in here is durable already, but it becomes an offset of its group only when its transaction
is committed, and vanishes if it is aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

from headrace.broker.groups.entries import OffsetRow
from headrace.broker.sizes import text_bytes

__all__ = ["PendingOffsets"]

Key = TypeVar("Key", bound=Hashable)
Place = tuple[str, str, int]
"""Group, topic, partition."""


class PendingOffsets:
    def __init__(self) -> None:
        self._transactions: dict[str, dict[Place, OffsetRow]] = {}
        #: In how many transactions an offset is pending, for each place and for each group.
        self._places: dict[Place, int] = {}
        self._groups: dict[str, int] = {}
        self.count = 0
        self.metadata_bytes = 0

    def put(self, transaction: str, group: str, row: OffsetRow) -> None:
        places = self._transactions.setdefault(transaction, {})
        place = (group, row.topic, row.partition)
        old = places.get(place)
        if old is None:
            self.count += 1
            self._places[place] = self._places.get(place, 0) + 1
            self._groups[group] = self._groups.get(group, 0) + 1
        else:
            self.metadata_bytes -= text_bytes(old.metadata)
        self.metadata_bytes += text_bytes(row.metadata)
        places[place] = row

    def get(self, transaction: str, group: str, topic: str, partition: int) -> OffsetRow | None:
        return self._transactions.get(transaction, {}).get((group, topic, partition))

    def has(self, group: str, topic: str, partition: int) -> bool:
        """Whether the end of some transaction may still change this offset."""
        return (group, topic, partition) in self._places

    def has_group(self, group: str) -> bool:
        return group in self._groups

    def groups(self) -> list[str]:
        return list(self._groups)

    def transactions(self) -> list[str]:
        return list(self._transactions)

    def groups_of(self, transaction: str) -> set[str]:
        return {group for group, _, _ in self._transactions.get(transaction, ())}

    def take(self, transaction: str) -> list[tuple[str, OffsetRow]]:
        """Remove and return what is pending for a transaction, in the order in which it came."""
        places = self._transactions.pop(transaction, {})
        for place, row in places.items():
            self._forget(place, row)
        return [(place[0], row) for place, row in places.items()]

    def remove_group(self, group: str) -> None:
        if group in self._groups:
            self._remove(lambda place: place[0] == group)

    def remove_topic(self, topic: str) -> None:
        self._remove(lambda place: place[1] == topic)

    def all(self) -> Iterator[tuple[str, str, Iterator[OffsetRow]]]:
        """Transaction, group and rows, every group of a transaction once."""
        for transaction, places in self._transactions.items():
            by_group: dict[str, list[OffsetRow]] = {}
            for (group, _, _), row in places.items():
                by_group.setdefault(group, []).append(row)
            for group, rows in by_group.items():
                yield transaction, group, iter(rows)

    def _remove(self, gone: Callable[[Place], bool]) -> None:
        for transaction, places in list(self._transactions.items()):
            for place in [place for place in places if gone(place)]:
                self._forget(place, places.pop(place))
            if not places:
                del self._transactions[transaction]

    def _forget(self, place: Place, row: OffsetRow) -> None:
        self.count -= 1
        self.metadata_bytes -= text_bytes(row.metadata)
        _less(self._places, place)
        _less(self._groups, place[0])


def _less(counts: dict[Key, int], key: Key) -> None:
    left = counts.pop(key) - 1
    if left:
        counts[key] = left
