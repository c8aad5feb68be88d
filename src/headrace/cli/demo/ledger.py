"""What the demo knows by itself: every record that was acknowledged, and what each group has read of them.

A record has a number that rises within its partition. A number that does not rise was read twice or written
twice; an acknowledged offset that a group never gets is lost to it. Only what is still on its way is held
in memory, so the ledger is as long as the lag and no longer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cli.lookup import Partition

__all__ = ["Ledger", "Reading"]


@dataclass(slots=True)
class Reading:
    """One group's side of the books."""

    topics: frozenset[str]
    awaited: dict[Partition, dict[int, int]] = field(default_factory=dict)
    """Acknowledged and not read yet: offset and number."""
    early: dict[Partition, dict[int, int]] = field(default_factory=dict)
    """Read before the acknowledgement was heard: the other way round."""
    last: dict[Partition, int] = field(default_factory=dict)
    read: int = 0
    doubled: int = 0
    altered: int = 0

    def acknowledged(self, where: Partition, offset: int, number: int) -> None:
        known = self.early.get(where, {}).pop(offset, None)
        if known is None:
            self.awaited.setdefault(where, {})[offset] = number
        else:
            self.altered += known != number

    def was_read(self, where: Partition, offset: int, number: int) -> None:
        self.read += 1
        if number <= self.last.get(where, -1):
            self.doubled += 1
            return
        self.last[where] = number
        expected = self.awaited.get(where, {}).pop(offset, None)
        if expected is None:
            self.early.setdefault(where, {})[offset] = number
        else:
            self.altered += expected != number

    @property
    def missing(self) -> int:
        return sum(map(len, self.awaited.values()))

    @property
    def unexplained(self) -> int:
        """Read, though no acknowledgement was ever heard; not a loss, but it needs a reason."""
        return sum(map(len, self.early.values()))


class Ledger:
    """Written by the producer's thread and every reader's."""

    def __init__(self, groups: Mapping[str, Iterable[str]]) -> None:
        self._lock = threading.Lock()
        self.groups = {name: Reading(frozenset(topics)) for name, topics in groups.items()}
        self.sent = 0
        self.acknowledged_count = 0
        self.refused = 0

    def sending(self) -> None:
        with self._lock:
            self.sent += 1

    def refuse(self) -> None:
        with self._lock:
            self.refused += 1

    def acknowledge(self, where: Partition, offset: int, number: int) -> None:
        with self._lock:
            self.acknowledged_count += 1
            for reading in self.groups.values():
                if where[0] in reading.topics:
                    reading.acknowledged(where, offset, number)

    def read(self, group: str, records: Sequence[tuple[Partition, int, int]]) -> None:
        with self._lock:
            reading = self.groups[group]
            for where, offset, number in records:
                reading.was_read(where, offset, number)

    def missing(self) -> int:
        with self._lock:
            return sum(reading.missing for reading in self.groups.values())
