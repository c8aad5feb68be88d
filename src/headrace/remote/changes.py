"""Iterators over the changes of a view: ``Changes`` for threads, ``AsyncChanges`` for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Generic, Self, TypeVar

from headrace.remote.errors import RemoteError
from headrace.remote.results import Change
from headrace.remote.subscription import Ended, Subscription
from headrace.remote.transport import AsyncTransport, Stream, Transport

__all__ = ["AsyncChanges", "Changes"]

R = TypeVar("R")


class _Connection(Generic[R]):
    """The connection of an iterator. The transport refers to this object, not to the iterator, so that it does not
    keep the iterator alive.
    """

    def __init__(self, transport: Transport, subscription: Subscription[R]) -> None:
        self.transport = transport
        self.subscription = subscription
        self.stopped = threading.Event()
        self.stream: Stream | None = None

    def stop(self) -> None:
        self.stopped.set()
        stream = self.stream
        if stream is not None:
            stream.shut()


class Changes(Generic[R]):
    """``for change in changes`` runs until ``close`` is called, in any thread, or until the client is closed.

    Only one thread can iterate. Requesting the next change marks the previous one as processed. ``cursor`` is the
    cursor of the last processed change.
    """

    def __init__(self, transport: Transport, subscription: Subscription[R]) -> None:
        self._connection = _Connection(transport, subscription)
        self._steps = _steps(self._connection)
        transport.stop_on_close(self._connection)

    @property
    def cursor(self) -> str | None:
        return self._connection.subscription.cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[R]:
        return next(self._steps)

    def close(self) -> None:
        self._connection.stop()
        # If another thread is iterating, its iteration ends by itself.
        with contextlib.suppress(ValueError):
            self._steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _steps(connection: _Connection[R]) -> Generator[Change[R], None, None]:
    while not connection.stopped.is_set():
        failure: Exception | None = None
        try:
            with connection.transport.stream(connection.subscription.request()) as connection.stream:
                if connection.stopped.is_set():
                    return
                for part in connection.stream.parts:
                    yield from connection.subscription.parse(part)
        except (RemoteError, Ended) as error:
            failure = error
        finally:
            connection.stream = None
        if not connection.stopped.is_set():
            connection.stopped.wait(connection.subscription.pause_before_retry(failure))


class AsyncChanges(Generic[R]):
    """``async for change in changes`` runs until the task is cancelled, or until the iterating task calls ``close``.

    Requesting the next change marks the previous one as processed. ``cursor`` is the
    cursor of the last processed change.
    """

    def __init__(self, transport: AsyncTransport, subscription: Subscription[R]) -> None:
        self._subscription = subscription
        self._steps = _async_steps(transport, subscription)

    @property
    def cursor(self) -> str | None:
        return self._subscription.cursor

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[R]:
        return await anext(self._steps)

    async def close(self) -> None:
        await self._steps.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _async_steps(
    transport: AsyncTransport, subscription: Subscription[R]
) -> AsyncGenerator[Change[R], None]:
    while True:
        failure: Exception | None = None
        try:
            async with transport.stream(subscription.request()) as parts:
                async for part in parts:
                    for change in subscription.parse(part):
                        yield change
        except (RemoteError, Ended) as error:
            failure = error
        await asyncio.sleep(subscription.pause_before_retry(failure))
