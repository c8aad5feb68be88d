"""Fetches that wait for new records, and the memory that all of them take.

A fetch that waits keeps its partitions, and each of these notes whom to wake: ten times what the request had. When all
waiting fetches together take too much, a further one keeps nothing but its encoded response, which is sent a little
later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.handlers.fetch import Fetching
    from headrace.broker.partition import Partition

__all__ = ["WaitingFetch", "WaitingFetches"]

_FETCH_BYTES = 2_048
_PARTITION_BYTES = 512
_EMPTY_DELAY_S = 0.5

Parts = list[bytearray | memoryview]


class WaitingFetches:
    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max

    def begin(self, partitions: int) -> int:
        """What to give back to ``end``; 0 if there is no room for a fetch of so many partitions."""
        size = _FETCH_BYTES + _PARTITION_BYTES * partitions
        if self.used_bytes + size > self._bytes_max:
            return 0
        self.used_bytes += size
        return size

    def end(self, size: int) -> None:
        self.used_bytes -= size


class WaitingFetch:
    """One fetch whose first attempt did not find enough. ``hurry`` ends its wait."""

    def __init__(self, broker: Broker, encode: Callable[[Any], Parts], *, hurried: bool) -> None:
        self._broker = broker
        self._encode = encode
        self._is_hurried = hurried
        self._news = asyncio.Event()

    def hurry(self) -> None:
        """Something stands behind the fetch, or the connection ends: answer with what there is."""
        self._is_hurried = True
        self._news.set()

    async def response(self, fetching: Fetching) -> Parts:
        """The encoded response, once there is enough or the time that the client waits is over."""
        waiting = self._broker.waiting_fetches
        partitions = fetching.partitions()
        held = waiting.begin(len(partitions))
        if held or fetching.is_cold:
            try:
                return self._encode(await self._wait(fetching, partitions, may_wait=bool(held)))
            finally:
                waiting.end(held)
        parts = self._encode(fetching.attempt(last=True))
        delay_s = 0.0 if fetching.found_bytes else min(fetching.max_wait_s, _EMPTY_DELAY_S)
        del fetching, partitions
        if not self._is_hurried:
            await self._news_within(delay_s)
        return parts

    async def _wait(self, fetching: Fetching, partitions: list[Partition], *, may_wait: bool) -> Any:
        loop = self._broker.loop
        deadline = loop.time() + min(fetching.max_wait_s, self._broker.limits.idle_ms_max / 2000)
        wake = self._news.set
        for partition in partitions:
            partition.watchers.add(wake)
        try:
            while True:
                while fetching.is_cold:
                    await fetching.warm()
                    response = fetching.attempt(last=False)
                    if response is not None:
                        return response
                left_s = deadline - loop.time()
                if may_wait and left_s > 0 and not self._is_hurried:
                    self._news.clear()
                    await self._news_within(left_s)
                last = not may_wait or self._is_hurried or loop.time() >= deadline
                response = fetching.attempt(last=last)
                if response is not None:
                    return response
        finally:
            for partition in partitions:
                partition.watchers.discard(wake)

    async def _news_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
