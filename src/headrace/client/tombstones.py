"""Deletions of a compacted topic, which the log does not keep for ever: whether a reader may have missed one.

A deletion is kept for ``delete.retention.ms`` and then removed. A reader that comes later keeps a row that nobody else
has, so it must start anew from the first offset. Headrace's broker tells below which offset it has removed deletions
(``headrace.tombstones.removed.below``). Apache Kafka does not, so there the time since the reader last read the log to
its end decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ReadPosition", "Tombstones"]

_REMOVED_BELOW = "headrace.tombstones.removed.below"
_DAY_MS = 86_400_000


class ReadPosition(Protocol):
    """How far somebody has read a topic."""

    @property
    def topic(self) -> str: ...

    @property
    def offsets(self) -> Mapping[int, int]:
        """Per partition, what comes next."""

    @property
    def removed_below(self) -> Mapping[int, int]:
        """Below which offsets the log had removed deletions already when the reading began, where it tells."""

    @property
    def complete_ms(self) -> int:
        """When the log was last read to its end, or begun with from its start."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """What the log says about the deletions of a topic."""

    compacted: bool
    kept_ms: int
    removed_below: dict[int, int] | None
    """None where the log does not tell."""

    @staticmethod
    def of(configs: Mapping[str, str | None]) -> Tombstones:
        """From the configuration of the topic."""
        text = configs.get(_REMOVED_BELOW)
        pairs = None if text is None else [pair.split(":") for pair in text.split(",") if pair]
        return Tombstones(
            "compact" in (configs.get("cleanup.policy") or ""),
            int(configs.get("delete.retention.ms") or _DAY_MS),
            None if pairs is None else {int(number): int(offset) for number, offset in pairs},
        )

    def why_missed(self, position: ReadPosition, starts: Mapping[int, int], now_ms: int) -> str | None:
        """Why a deletion may have been removed before the position's reader came to it."""
        begun = [number for number, at in position.offsets.items() if at > starts.get(number, 0)]
        if not self.compacted or not begun:
            return None
        too_late = now_ms - position.complete_ms > self.kept_ms
        if self.removed_below is None:
            return (
                f"deletions in {position.topic!r} are kept for {self.kept_ms} ms, and it was not read to its end for"
                f" {now_ms - position.complete_ms} ms"
                if too_late
                else None
            )
        for number in begun:
            at, below = position.offsets[number], self.removed_below.get(number, 0)
            # Below what was removed already when reading began, only those can have been missed since that had
            # their value then; and such a deletion is kept for its time.
            if below > at and (below != position.removed_below.get(number, 0) or too_late):
                return (
                    f"deletions in partition {number} of {position.topic!r} were removed up to offset {below},"
                    f" and the reader is at {at}"
                )
        return None
