"""A journal in memory, whose disk can be made slow or made to fail."""

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
        """From now on writes wait."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def killed(self, *, with_last_write: bool) -> MemoryJournal:
        """What a new process finds. The last write was not acknowledged: it may be there or not."""
        found = MemoryJournal([*self.durable, *(self._under_way if with_last_write else ())])
        self.fails = True
        self.release()
        return found

    def snapshot(self) -> None:
        """Replace the past by what the owner says its state is."""
        self.durable = list(self._source())
