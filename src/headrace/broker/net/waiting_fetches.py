"""Fetches that wait for new records, and the limit on their memory.

A waiting fetch has references to its partitions, and each partition has a callback that wakes the fetch. Together they
use about ten times the memory of the request. If all waiting fetches exceed their limit, a further fetch does not wait
for new records. It stores only its encoded response, and the broker sends the response after a short delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.net.request import Parts

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.handlers.fetch import PendingFetch
    from headrace.broker.storage.partition import Partition

__all__ = ["WaitingFetch", "WaitingFetches"]

_FETCH_BYTES = 2_048
_PARTITION_BYTES = 512
_EMPTY_DELAY_S = 0.5


class WaitingFetches:
    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max

    def begin(self, partitions: int) -> int:
        """Reserve memory for a fetch, and return its size. Pass the size to ``end`` when the fetch ends.

        Returns 0 if the waiting fetches would exceed their limit.
        """
        size = _FETCH_BYTES + _PARTITION_BYTES * partitions
        if self.used_bytes + size > self._bytes_max:
            return 0
        self.used_bytes += size
        return size

    def end(self, size: int) -> None:
        self.used_bytes -= size


class WaitingFetch:
    """A fetch that waits until its partitions have enough records. ``respond_now`` ends its wait.

    From its creation to ``close``, it reserves memory, and new records of its partitions wake it. So it misses no
    record if the last attempt before its creation ran in the same iteration of the event loop.
    """

    def __init__(
        self,
        broker: Broker,
        pending_fetch: PendingFetch,
        encode: Callable[[Any, int], Awaitable[Parts]],
        *,
        respond_now: bool,
    ) -> None:
        """``encode`` takes the response and the size of its records."""
        self._broker = broker
        self._pending_fetch: PendingFetch | None = pending_fetch
        self._encode = encode
        self._must_respond = respond_now
        self._has_new_records = asyncio.Event()
        partitions = pending_fetch.partitions()
        self._reserved_bytes = broker.waiting_fetches.begin(len(partitions))
        self._partitions: list[Partition] = partitions if self._reserved_bytes else []
        for partition in self._partitions:
            partition.watchers.add(self._wake)

    def close(self) -> None:
        """Release the memory. The fetch no longer notices new records."""
        for partition in self._partitions:
            partition.watchers.discard(self._wake)
        self._partitions = []
        self._broker.waiting_fetches.end(self._reserved_bytes)
        self._reserved_bytes = 0
        self._pending_fetch = None

    def respond_now(self) -> None:
        """Respond with the available records, because another request arrived or the connection ends."""
        self._must_respond = True
        self._wake()

    def _wake(self) -> None:
        self._has_new_records.set()

    async def response(self) -> Parts:
        """Return the encoded response when enough records have arrived or the client's wait is over."""
        pending_fetch = self._pending_fetch
        assert pending_fetch is not None
        loop = self._broker.loop
        deadline = loop.time() + min(pending_fetch.max_wait_s, self._broker.limits.idle_ms_max / 2000)
        may_wait = bool(self._reserved_bytes)
        if pending_fetch.is_large:
            parts = await self._attempt(pending_fetch, last=self._must_respond or not may_wait)
        else:
            parts = None  # The connection made the first attempt.
            self._broker.turns.give_back()
        while parts is None:
            if pending_fetch.is_cold:
                await pending_fetch.read_cold()
                last = False
            else:
                if may_wait and not self._must_respond:
                    await self._wait_for_records(deadline - loop.time())
                last = not may_wait or self._must_respond or loop.time() >= deadline
            parts = await self._attempt(pending_fetch, last=last)
        if may_wait or pending_fetch.found_bytes or self._must_respond:
            return parts
        # The client would repeat the request at once.
        delay_s = min(pending_fetch.max_wait_s, _EMPTY_DELAY_S)
        self._pending_fetch = pending_fetch = None
        await self._wait_for_records(delay_s)
        return parts

    async def _attempt(self, pending_fetch: PendingFetch, *, last: bool) -> Parts | None:
        # Records that arrive during the attempt wake the next wait.
        self._has_new_records.clear()
        if pending_fetch.is_large:
            return await pending_fetch.encoded_in_turn(lambda response: self._encode(response, 0), last=last)
        response = pending_fetch.attempt(last=last)
        return None if response is None else await self._encode(response, pending_fetch.found_bytes)

    async def _wait_for_records(self, seconds: float) -> None:
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._has_new_records.wait()
        except TimeoutError:
            pass
