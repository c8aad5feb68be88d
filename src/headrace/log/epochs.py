"""Leader epochs of a partition: at which offset each run of the broker began to write.

A client that was reading when the log lost its unsynced tail asks how far its epoch reached, and learns where
to go on.
"""

from __future__ import annotations

__all__ = ["Epochs"]


class Epochs:
    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.entries = entries or []

    def note(self, epoch: int, start_offset: int) -> None:
        """A batch of ``epoch`` was written at ``start_offset``."""
        if not self.entries or self.entries[-1][0] < epoch:
            self.entries.append((epoch, start_offset))

    def cut(self, start_offset: int, end_offset: int) -> None:
        """Drop what lies outside the log, keeping the epoch that the first offset belongs to."""
        kept = [entry for entry in self.entries if entry[1] < end_offset]
        while len(kept) > 1 and kept[1][1] <= start_offset:
            kept.pop(0)
        if kept and kept[0][1] < start_offset:
            kept[0] = (kept[0][0], start_offset)
        self.entries = kept

    def end_of(self, epoch: int, current: int, end_offset: int) -> tuple[int, int]:
        """The last epoch at or below ``epoch`` and the offset it ended at; (-1, -1) where nothing is known."""
        if epoch == current:
            return current, end_offset
        if epoch > current or epoch < 0:
            return -1, -1
        found = -1
        for known, start in self.entries:
            if known > epoch:
                return (found, start) if found >= 0 else (epoch, start)
            found = known
        return (found, end_offset) if found >= 0 else (-1, -1)
