"""The state snapshots of one partition: which there are, and which of them may go.

A snapshot is written whenever a segment is sealed, before the batches that it covers are known to be on disk. A power
loss can take these batches, and the snapshot is of no use then. So the newest ones below the synced offset are kept,
however many there are above it.
"""

from __future__ import annotations

from pathlib import Path

from headrace.files import Files
from headrace.log.segment import write_whole
from headrace.log.state import PartitionState, dump_state, state_name

__all__ = ["StateFiles"]

_KEPT = 2


class StateFiles:
    def __init__(self, files: Files, directory: Path, offsets: list[int]) -> None:
        self._files = files
        self._directory = directory
        self._offsets = sorted(offsets)
        self._written = 0

    def write(self, state: PartitionState, synced_offset: int) -> None:
        """Add a snapshot and remove those that no start will need; the caller syncs the directory."""
        self._write(state)
        if state.offset not in self._offsets:
            self._offsets.append(state.offset)
        # At the synced offset itself, the name may not be durable yet.
        below = [offset for offset in self._offsets if offset < synced_offset]
        for offset in below[:-_KEPT]:
            self._files.remove(self._directory / state_name(offset))
            self._offsets.remove(offset)

    def write_alone(self, state: PartitionState) -> None:
        """Add a snapshot and remove all others: they say something that is no longer true. The caller syncs the
        directory; until then an older one could come back with what it says still in the log.
        """
        self._write(state)
        for offset in self._offsets:
            if offset != state.offset:
                self._files.remove(self._directory / state_name(offset))
        self._offsets = [state.offset]

    def _write(self, state: PartitionState) -> None:
        write_whole(self._files, self._directory / state_name(state.offset), dump_state(state))
        self._written += 1

    def newest(self, end_offset: int) -> tuple[int, int] | None:
        below = [offset for offset in self._offsets if offset <= end_offset]
        return (self._written, max(below)) if below else None

    def has_one_in(self, first: int, last: int) -> bool:
        return any(first <= offset <= last for offset in self._offsets)
