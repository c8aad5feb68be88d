"""Tombstones: detects that a reader of a compacted topic may have missed a deletion.

The log retains a tombstone for ``delete.retention.ms`` and then removes it. A reader that missed a tombstone still has
the deleted row, so it must start again from the first offset. Headrace's broker reports the offset below which it has
removed tombstones (``headrace.tombstones.removed.below``). Apache Kafka does not report it. There, the decision depends
on how long ago the reader last reached the end of the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ReadPosition", "Tombstones"]

_REMOVED_BELOW = "headrace.tombstones.removed.below"
_DAY_MS = 86_400_000


class ReadPosition(Protocol):
    """The position of a reader in a topic."""

    @property
    def topic(self) -> str: ...

    @property
    def offsets(self) -> Mapping[int, int]:
        """The next offset to read, per partition."""

    @property
    def removed_below(self) -> Mapping[int, int]:
        """The offsets below which tombstones were already removed when the reader began, if the log reports them."""

    @property
    def complete_ms(self) -> int:
        """When the reader last reached the end of the topic, or began at its start, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """What the topic's configuration says about tombstones: how long they are retained, and which were removed."""

    compacted: bool
    kept_ms: int
    removed_below: dict[int, int] | None
    """The offset below which tombstones were removed, per partition; None if the broker does not report it."""

    @staticmethod
    def of(configs: Mapping[str, str | None]) -> Tombstones:
        """Read the values from the configuration of the topic."""
        text = configs.get(_REMOVED_BELOW)
        pairs = None if text is None else [pair.split(":") for pair in text.split(",") if pair]
        return Tombstones(
            "compact" in (configs.get("cleanup.policy") or ""),
            int(configs.get("delete.retention.ms") or _DAY_MS),
            None if pairs is None else {int(number): int(offset) for number, offset in pairs},
        )

    def missed_tombstone_reason(
        self, position: ReadPosition, starts: Mapping[int, int], now_ms: int
    ) -> str | None:
        """Return the reason why the reader may have missed a tombstone; None if it cannot have missed one."""
        started_partitions = [number for number, at in position.offsets.items() if at > starts.get(number, 0)]
        if not self.compacted or not started_partitions:
            return None
        too_late = now_ms - position.complete_ms > self.kept_ms
        if self.removed_below is None:
            return (
                f"topic {position.topic!r} retains tombstones for {self.kept_ms} ms, but the reader last reached its"
                f" end {now_ms - position.complete_ms} ms ago"
                if too_late
                else None
            )
        for number in started_partitions:
            at, below = position.offsets[number], self.removed_below.get(number, 0)
            # ``position.removed_below`` is the value when the reader began. If the value has not changed,
            # only the tombstone of a row that the reader has read matters. The log retained that tombstone
            # for the full ``delete.retention.ms``, so only a reader that is ``too_late`` may have missed it.
            if below > at and (below != position.removed_below.get(number, 0) or too_late):
                return (
                    f"tombstones in partition {number} of {position.topic!r} were removed up to offset {below},"
                    f" but the reader is at offset {at}"
                )
        return None
