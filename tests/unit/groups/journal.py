"""A journal in memory, whose writes can be slow or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from headrace.errors import PartitionFenced


class MemoryJournal:
    def __init__(self, durable: Iterable[bytes] = ()) -> None:
        self.durable = list(durable)
        self.entries = list(self.durable)
        self.writes = 0
        self.fails = False
        self._under_way: list[bytes] = []
        self._source: Callable[[], Iterable[bytes]] = list
        self._open = asyncio.Event()
        self._open.set()

    def forget_entries(self) -> None:
        self.entries = []

    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None:
        self._source = source

    async def write(self, entries: Sequence[bytes]) -> None:
        self.writes += 1
        self._under_way = list(entries)
        await self._open.wait()
        self._under_way = []
        if self.fails:
            raise PartitionFenced("the disk failed")
        self.durable += entries

    def hold(self) -> None:
        """Make writes wait until ``release``."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def after_kill(self, *, with_last_write: bool) -> MemoryJournal:
        """Return the journal that a new process reads. The last write, which was not acknowledged, may be missing."""
        next_journal = MemoryJournal([*self.durable, *(self._under_way if with_last_write else ())])
        self.fails = True
        self.release()
        return next_journal

    def snapshot(self) -> None:
        """Replace all entries by a snapshot of the owner's state."""
        self.durable = list(self._source())
