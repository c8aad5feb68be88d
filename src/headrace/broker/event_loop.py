"""Helpers that avoid blocking: long work yields to other requests, or runs in a thread that does not delay exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.clock import Clock

__all__ = ["Step", "Turns", "in_daemon_thread", "yield_every"]

_STEP_S_MAX = 0.005
# Iterations of the event loop between two steps. A small request needs two: one to handle it, one to send its response.
_ITERATIONS_BETWEEN = 3


async def yield_every(items: int, number: int) -> None:
    """Let the event loop run other tasks after every ``items`` items. ``number`` counts the items from 1."""
    if number % items == 0:
        await asyncio.sleep(0)


class Step:
    """A step of a long request. It is over after ``items`` items, or after 5 ms if that is earlier.

    An item can take long, for example on a slow machine, so a number alone is not enough.
    """

    __slots__ = ("_clock", "_ends_at", "_items", "_items_max")

    def __init__(self, clock: Clock, items: int) -> None:
        self._clock = clock
        self._items_max = items
        self.restart()

    def restart(self) -> None:
        self._items = 0
        self._ends_at = self._clock.steady() + _STEP_S_MAX

    def is_over(self) -> bool:
        """Count an item, and return whether the step is over."""
        self._items += 1
        return self._items >= self._items_max or self._clock.steady() >= self._ends_at


class Turns:
    """Lets the long requests of all clients take turns.

    Only one task has a turn at a time. During a long turn it calls ``pause`` between the steps of its work, and the
    event loop then handles all other requests. So these wait for one step, however many clients send long requests.

    A task that has a turn must not wait for the disk or for another client, because all long requests wait for it.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None

    @property
    def is_taken(self) -> bool:
        return self._holder is not None

    def is_held_by_me(self) -> bool:
        """Whether the current task has the turn."""
        return self._holder is not None and self._holder is asyncio.current_task()

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    async def take(self) -> None:
        """Wait for a turn and keep it until ``give_back``. A task that has a turn only pauses."""
        task = asyncio.current_task()
        if self._holder is not task:
            await self._lock.acquire()
            self._holder = task
        try:
            await self.pause()
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """End the turn of this task. Does nothing if it has none."""
        if self.is_held_by_me():
            self._holder = None
            self._lock.release()

    async def pause(self) -> None:
        """Let the event loop handle other requests."""
        for _ in range(_ITERATIONS_BETWEEN):
            await asyncio.sleep(0)

    async def wait(self) -> None:
        """Wait for a turn, but do not keep it. For work that waits for the disk between its steps."""
        async with self:
            pass


T = TypeVar("T")


async def in_daemon_thread(name: str, work: Callable[[], T]) -> T:
    """Run ``work`` in a daemon thread, so that a hanging mount or network cannot prevent the process from exiting.

    If the caller is cancelled, the thread continues, but its result is lost.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # Raised in the caller.
            failure = error
        try:
            loop.call_soon_threadsafe(set_outcome, result, failure)
        except RuntimeError:
            return  # The loop is closed, so no caller waits.

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
