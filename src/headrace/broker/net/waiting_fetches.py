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
    """A fetch whose first attempt did not find enough records. ``respond_now`` ends its wait."""

    def __init__(
        self, broker: Broker, encode: Callable[[Any], Awaitable[Parts]], *, respond_now: bool
    ) -> None:
        self._broker = broker
        self._encode = encode
        self._must_respond = respond_now
        self._has_new_records = asyncio.Event()

    def respond_now(self) -> None:
        """Respond with the available records, because another request arrived or the connection ends."""
        self._must_respond = True
        self._has_new_records.set()

    async def response(self, pending_fetch: PendingFetch) -> Parts:
        """Return the encoded response when enough records have arrived or the client's wait is over."""
        waiting = self._broker.waiting_fetches
        partitions = pending_fetch.partitions()
        reserved_bytes = waiting.begin(len(partitions))
        if reserved_bytes or pending_fetch.is_cold:
            try:
                return await self._wait(pending_fetch, partitions, may_wait_for_records=bool(reserved_bytes))
            finally:
                waiting.end(reserved_bytes)
        parts = await self._attempt(pending_fetch, last=True)
        assert parts is not None
        delay_s = 0.0 if pending_fetch.found_bytes else min(pending_fetch.max_wait_s, _EMPTY_DELAY_S)
        del pending_fetch, partitions
        if not self._must_respond:
            await self._wait_for_records(delay_s)
        return parts

    async def _wait(
        self, pending_fetch: PendingFetch, partitions: list[Partition], *, may_wait_for_records: bool
    ) -> Parts:
        loop = self._broker.loop
        deadline = loop.time() + min(pending_fetch.max_wait_s, self._broker.limits.idle_ms_max / 2000)
        wake = self._has_new_records.set
        for partition in partitions:
            partition.watchers.add(wake)
        try:
            while True:
                while pending_fetch.is_cold:
                    await pending_fetch.read_cold()
                    parts = await self._attempt(pending_fetch, last=False)
                    if parts is not None:
                        return parts
                left_s = deadline - loop.time()
                if may_wait_for_records and left_s > 0 and not self._must_respond:
                    self._has_new_records.clear()
                    await self._wait_for_records(left_s)
                last = not may_wait_for_records or self._must_respond or loop.time() >= deadline
                parts = await self._attempt(pending_fetch, last=last)
                if parts is not None:
                    return parts
        finally:
            for partition in partitions:
                partition.watchers.discard(wake)

    async def _attempt(self, pending_fetch: PendingFetch, *, last: bool) -> Parts | None:
        if pending_fetch.is_large:
            return await pending_fetch.encoded_in_turns(self._encode, last=last)
        response = pending_fetch.attempt(last=last)
        return None if response is None else await self._encode(response)

    async def _wait_for_records(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._has_new_records.wait()
        except TimeoutError:
            pass
