"""The durable state of groups and transactions: the result of applying the journal's entries in order.

The state contains only entries that are in the journal, at start and at run time. At start, the coordinator builds the
live groups (``group.py``) from it. Later they can differ: during a rebalance, a live group is ahead of the durable
state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from headrace.broker.groups.entries import (
    Entry,
    GroupDeleted,
    GroupEntry,
    OffsetRow,
    OffsetsDeleted,
    OffsetsEntry,
    TopicDeleted,
    TransactionalIdDeleted,
    TransactionEntry,
    TransactionOffsets,
)
from headrace.broker.limits import text_bytes

__all__ = ["CoordinatorState", "Offsets", "PendingOffsets"]

#: Limits the size of a snapshot entry, whatever the number of partitions.
_ROWS_PER_ENTRY_MAX = 1_000


class CoordinatorState:
    def __init__(self) -> None:
        self.groups: dict[str, GroupEntry] = {}
        self.offsets = Offsets()
        self.transactions: dict[str, TransactionEntry] = {}
        self.pending = PendingOffsets()

    def apply(self, entry: Entry) -> None:
        match entry:
            case OffsetsEntry():
                for row in entry.rows:
                    self.offsets.put(entry.group, row)
            case GroupEntry():
                self.groups[entry.group] = entry
            case OffsetsDeleted():
                for topic, partition in entry.partitions:
                    self.offsets.remove(entry.group, topic, partition)
            case GroupDeleted():
                self.groups.pop(entry.group, None)
                self.offsets.remove_group(entry.group)
                self.pending.remove_group(entry.group)
            case TopicDeleted():
                self.offsets.remove_topic(entry.topic)
                self.pending.remove_topic(entry.topic)
            case TransactionOffsets():
                for row in entry.rows:
                    self.pending.put(entry.id, entry.group, row)
            case TransactionEntry():
                self.transactions[entry.id] = entry
                for group, row in self.pending.take(entry.id) if entry.decides else ():
                    if entry.ended == "commit":
                        self.offsets.put(group, row)
            case TransactionalIdDeleted():
                self.transactions.pop(entry.id, None)
                self.pending.take(entry.id)

    def snapshot(self) -> Iterator[Entry]:
        """Return entries that rebuild this state when they are applied in order."""
        yield from self.groups.values()
        for group in self.offsets.groups():
            rows = self.offsets.rows(group)
            while chunk := list(islice(rows, _ROWS_PER_ENTRY_MAX)):
                yield OffsetsEntry(group, chunk)
        # A transaction entry commits or drops the pending offsets before it, so the pending offsets must come last.
        yield from self.transactions.values()
        for transaction, group, pending in self.pending.all():
            while chunk := list(islice(pending, _ROWS_PER_ENTRY_MAX)):
                yield TransactionOffsets(transaction, group, chunk)


_NONE: Mapping[str, Mapping[int, OffsetRow]] = {}


class Offsets:
    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, OffsetRow]]] = {}
        self.count = 0
        self.metadata_bytes = 0

    def get(self, group: str, topic: str, partition: int) -> OffsetRow | None:
        return self._groups.get(group, _NONE).get(topic, {}).get(partition)

    def of_group(self, group: str) -> Mapping[str, Mapping[int, OffsetRow]]:
        return self._groups.get(group, _NONE)

    def rows(self, group: str) -> Iterator[OffsetRow]:
        for partitions in self._groups.get(group, _NONE).values():
            yield from partitions.values()

    def groups(self) -> Iterable[str]:
        return self._groups.keys()

    def topics(self) -> set[str]:
        return {topic for topics in self._groups.values() for topic in topics}

    def put(self, group: str, row: OffsetRow) -> None:
        partitions = self._groups.setdefault(group, {}).setdefault(row.topic, {})
        previous = partitions.get(row.partition)
        if previous is None:
            self.count += 1
        else:
            self.metadata_bytes -= text_bytes(previous.metadata)
        self.metadata_bytes += text_bytes(row.metadata)
        partitions[row.partition] = row

    def remove(self, group: str, topic: str, partition: int) -> None:
        by_topic = self._groups.get(group, {})
        row = by_topic.get(topic, {}).pop(partition, None)
        if row is not None:
            self._forget([row])
            self._remove_if_empty(group, by_topic, topic)

    def remove_group(self, group: str) -> None:
        for partitions in self._groups.pop(group, {}).values():
            self._forget(partitions.values())

    def remove_topic(self, topic: str) -> None:
        for group in [group for group, topics in self._groups.items() if topic in topics]:
            by_topic = self._groups[group]
            self._forget(by_topic[topic].values())
            by_topic[topic].clear()
            self._remove_if_empty(group, by_topic, topic)

    def _forget(self, rows: Collection[OffsetRow]) -> None:
        self.count -= len(rows)
        self.metadata_bytes -= sum(text_bytes(row.metadata) for row in rows)

    def _remove_if_empty(self, group: str, by_topic: dict[str, dict[int, OffsetRow]], topic: str) -> None:
        if not by_topic[topic]:
            del by_topic[topic]
        if not by_topic:
            del self._groups[group]


Key = TypeVar("Key", bound=Hashable)
GroupPartition = tuple[str, str, int]
"""Group, topic, partition."""


class PendingOffsets:
    def __init__(self) -> None:
        self._transactions: dict[str, dict[GroupPartition, OffsetRow]] = {}
        #: The number of transactions with a pending offset, by partition and by group.
        self._partitions: dict[GroupPartition, int] = {}
        self._groups: dict[str, int] = {}
        self.count = 0
        self.metadata_bytes = 0

    def put(self, transaction: str, group: str, row: OffsetRow) -> None:
        partitions = self._transactions.setdefault(transaction, {})
        partition = (group, row.topic, row.partition)
        previous = partitions.get(partition)
        if previous is None:
            self.count += 1
            self._partitions[partition] = self._partitions.get(partition, 0) + 1
            self._groups[group] = self._groups.get(group, 0) + 1
        else:
            self.metadata_bytes -= text_bytes(previous.metadata)
        self.metadata_bytes += text_bytes(row.metadata)
        partitions[partition] = row

    def get(self, transaction: str, group: str, topic: str, partition: int) -> OffsetRow | None:
        return self._transactions.get(transaction, {}).get((group, topic, partition))

    def has(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction can still change this offset."""
        return (group, topic, partition) in self._partitions

    def has_group(self, group: str) -> bool:
        return group in self._groups

    def groups(self) -> list[str]:
        return list(self._groups)

    def transactions(self) -> list[str]:
        return list(self._transactions)

    def groups_of(self, transaction: str) -> set[str]:
        return {group for group, _, _ in self._transactions.get(transaction, ())}

    def take(self, transaction: str) -> list[tuple[str, OffsetRow]]:
        """Remove and return the pending offsets of a transaction, in the order of their commits."""
        partitions = self._transactions.pop(transaction, {})
        for partition, row in partitions.items():
            self._forget(partition, row)
        return [(partition[0], row) for partition, row in partitions.items()]

    def remove_group(self, group: str) -> None:
        if group in self._groups:
            self._remove(lambda partition: partition[0] == group)

    def remove_topic(self, topic: str) -> None:
        self._remove(lambda partition: partition[1] == topic)

    def all(self) -> Iterator[tuple[str, str, Iterator[OffsetRow]]]:
        """Yield transaction, group and rows, once for each group of a transaction."""
        for transaction, partitions in self._transactions.items():
            by_group: dict[str, list[OffsetRow]] = {}
            for (group, _, _), row in partitions.items():
                by_group.setdefault(group, []).append(row)
            for group, rows in by_group.items():
                yield transaction, group, iter(rows)

    def _remove(self, is_removed: Callable[[GroupPartition], bool]) -> None:
        for transaction, partitions in list(self._transactions.items()):
            for partition in [partition for partition in partitions if is_removed(partition)]:
                self._forget(partition, partitions.pop(partition))
            if not partitions:
                del self._transactions[transaction]

    def _forget(self, partition: GroupPartition, row: OffsetRow) -> None:
        self.count -= 1
        self.metadata_bytes -= text_bytes(row.metadata)
        _decrement(self._partitions, partition)
        _decrement(self._groups, partition[0])


def _decrement(counts: dict[Key, int], key: Key) -> None:
    remaining = counts.pop(key) - 1
    if remaining:
        counts[key] = remaining
