"""Helpers that avoid blocking: yield to other requests, and run work in a thread that does not delay process exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_daemon_thread", "yield_every"]


async def yield_every(items: int, number: int) -> None:
    """Let the event loop run other tasks after every ``items`` items. ``number`` counts the items from 1."""
    if number % items == 0:
        await asyncio.sleep(0)


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
