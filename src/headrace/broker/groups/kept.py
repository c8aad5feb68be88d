"""The coordinator's durable state: the fold of its journal.

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
)
from headrace.broker.groups.offsets import Offsets

__all__ = ["Kept"]

#: So that no snapshot entry grows with the number of partitions.
_ROWS_PER_ENTRY_MAX = 1_000


class Kept:
    def __init__(self) -> None:
        self.groups: dict[str, GroupEntry] = {}
        self.offsets = Offsets()

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
            case TopicGone():
                self.offsets.remove_topic(entry.topic)

    def snapshot(self) -> Iterator[Entry]:
        """The whole state as entries whose fold is this state."""
        yield from self.groups.values()
        for group in self.offsets.groups():
            rows = self.offsets.rows(group)
            while chunk := list(islice(rows, _ROWS_PER_ENTRY_MAX)):
                yield OffsetsEntry(group, chunk)
