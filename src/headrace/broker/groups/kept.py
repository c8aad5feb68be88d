"""The coordinators' durable state: the fold of their journal.

Nothing gets in here but entries that the journal has, in the journal's order, both when the broker starts and
while it runs. The groups that members talk to (``group.py``) are built from it at start and live apart from
it: in the middle of a rebalance they are ahead of what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headrace.broker.groups.entries import (
    Entry,
    GroupEntry,
    GroupGone,
    OffsetsEntry,
    OffsetsGone,
    TopicGone,
    TransactionEntry,
    TransactionGone,
    TransactionOffsets,
)
from headrace.broker.groups.offsets import Offsets
from headrace.broker.groups.pending_offsets import PendingOffsets

__all__ = ["Kept"]

#: So that no snapshot entry grows with the number of partitions.
_ROWS_PER_ENTRY_MAX = 1_000


class Kept:
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
            case OffsetsGone():
                for topic, partition in entry.partitions:
                    self.offsets.remove(entry.group, topic, partition)
            case GroupGone():
                self.groups.pop(entry.group, None)
                self.offsets.remove_group(entry.group)
                self.pending.remove_group(entry.group)
            case TopicGone():
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
            case TransactionGone():
                self.transactions.pop(entry.id, None)
                self.pending.take(entry.id)

    def snapshot(self) -> Iterator[Entry]:
        """The whole state as entries whose fold is this state."""
        yield from self.groups.values()
        for group in self.offsets.groups():
            rows = self.offsets.rows(group)
            while chunk := list(islice(rows, _ROWS_PER_ENTRY_MAX)):
                yield OffsetsEntry(group, chunk)
        # Before what is pending: an entry about a transaction settles what lies before it.
        yield from self.transactions.values()
        for transaction, group, pending in self.pending.all():
            while chunk := list(islice(pending, _ROWS_PER_ENTRY_MAX)):
                yield TransactionOffsets(transaction, group, chunk)
