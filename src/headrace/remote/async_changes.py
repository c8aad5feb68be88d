"""Steps of a view as they come, for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Generic, Self, TypeVar

from headrace.remote.async_transport import AsyncTransport
from headrace.remote.change import Change
from headrace.remote.errors import RemoteError
from headrace.remote.subscription import Ended, Subscription

__all__ = ["AsyncChanges"]

R = TypeVar("R")


class AsyncChanges(Generic[R]):
    """``async for change in changes``, for ever: until the task is cancelled, or ``close`` by who iterates.

    A step counts as taken when the next one is asked for; ``cursor`` is behind the last such.
    """

    def __init__(self, transport: AsyncTransport, subscription: Subscription[R]) -> None:
        self._subscription = subscription
        self._steps = _steps(transport, subscription)

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


async def _steps(transport: AsyncTransport, subscription: Subscription[R]) -> AsyncGenerator[Change[R], None]:
    while True:
        trouble: Exception | None = None
        try:
            async with transport.stream(subscription.request()) as parts:
                async for part in parts:
                    for change in subscription.take(part):
                        yield change
        except (RemoteError, Ended) as error:
            trouble = error
        await asyncio.sleep(subscription.broken(trouble))
