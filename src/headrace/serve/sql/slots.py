"""Slots for statements: some for each token, and turn by turn among the tokens that wait.

A token that has its share of the slots waits, however many are free: the next statement of another token begins at
once. Of those who wait, each token has one turn, then the next one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from headrace.serve.errors import ShareTaken, TooBusy
from headrace.serve.shares import share_of

__all__ = ["FairSlots"]


class FairSlots:
    """An empty token id stands for everybody, where no tokens are needed, and has all slots. In one event loop."""

    def __init__(self, slots: int, queue_max: int, percent: int) -> None:
        self._slots = slots
        self._per_token = share_of(slots, percent)
        self._queue_max = queue_max
        self._queue_per_token = share_of(queue_max, percent)
        self._running: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """By token, in the order of their turns."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    async def acquire(self, token_id: str) -> None:
        if self._may_run(token_id):
            self._running[token_id] += 1
            return
        self._expect_room(token_id)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(token_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(token_id)
            else:
                self._leave(token_id, turn)
            raise

    def release(self, token_id: str) -> None:
        self._running[token_id] -= 1
        if not self._running[token_id]:
            del self._running[token_id]
        while (chosen := next(filter(self._may_run, self._queues), None)) is not None:
            queue = self._queues.pop(chosen)
            turn = queue.popleft()
            if queue:
                # Behind the others.
                self._queues[chosen] = queue
            if not turn.done():
                self._running[chosen] += 1
                turn.set_result(None)

    def _may_run(self, token_id: str) -> bool:
        most = self._per_token if token_id else self._slots
        return self._running.total() < self._slots and self._running[token_id] < most

    def _expect_room(self, token_id: str) -> None:
        if self.waiting >= self._queue_max:
            raise TooBusy(
                f"too many waiting statements (limit {self._queue_max})", hint="ask again in a moment"
            )
        if token_id and len(self._queues.get(token_id, ())) >= self._queue_per_token:
            raise ShareTaken(
                f"too many waiting statements with this token (limit {self._queue_per_token})",
                hint="wait until one is answered, or raise serve.token_share_percent",
            )

    def _leave(self, token_id: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(token_id)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._queues[token_id]
