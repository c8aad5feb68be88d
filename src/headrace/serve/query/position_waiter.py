"""Waits until a view reflects a position token. All waiters of a view share one poll of its store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.model.declarations import View
from headrace.serve.errors import PositionTimeout, ShuttingDown
from headrace.serve.http.executor import BoundedExecutor
from headrace.serve.query.causality import Causality
from headrace.serve.query.position_token import PositionToken, position_document
from headrace.serve.query.views import Views
from headrace.stores.position import Position

__all__ = ["PositionWaiter", "position_timeout"]

_POLL_EVERY_S = 0.01
_POLL_S_MAX = 10.0


@dataclass(slots=True)
class _Watch:
    """A view that at least one request waits for."""

    view: View
    waiters: int = 0
    position: Position | None = None
    error: HeadraceError | None = None
    polled: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class PositionWaiter:
    """Use it in one event loop."""

    def __init__(self, views: Views, causality: Causality, executor: BoundedExecutor, clock: Clock) -> None:
        self._views = views
        self._causality = causality
        self._executor = executor
        self._clock = clock
        self._watches: dict[str, _Watch] = {}
        self.draining = False
        self.waiters = 0

    async def wait(self, view: View, token: PositionToken, deadline: float) -> None:
        """Return when the view reflects the token. Raise ``PositionTimeout`` at the deadline."""
        watch = self._watches.setdefault(view.name, _Watch(view))
        watch.waiters += 1
        self.waiters += 1
        if watch.task is None:
            watch.task = asyncio.create_task(self._poll(watch))
        try:
            await self._wait(watch, token, deadline)
        finally:
            watch.waiters -= 1
            self.waiters -= 1

    async def _wait(self, watch: _Watch, token: PositionToken, deadline: float) -> None:
        polls = 0
        while True:
            polled = watch.polled
            # Ignore a poll that started before this request.
            if polls:
                if watch.position is not None and self._causality.covers(watch.view, watch.position, token):
                    return
                if self.draining:
                    raise ShuttingDown("the server is stopping", hint="try again in a moment")
                if deadline - self._clock.steady() <= 0:
                    raise position_timeout(watch.view, watch.position, watch.error)
            try:
                wait_s = max(0.0, deadline - self._clock.steady()) if polls else _POLL_S_MAX
                async with asyncio.timeout(max(_POLL_EVERY_S, wait_s)):
                    await polled.wait()
            except TimeoutError:
                raise position_timeout(watch.view, watch.position, watch.error) from None
            polls += 1

    async def _poll(self, watch: _Watch) -> None:
        try:
            while watch.waiters:
                try:
                    watch.position = await self._executor.run(
                        lambda: self._position(watch.view), _POLL_S_MAX, watch.view.store
                    )
                    watch.error = None
                except HeadraceError as error:
                    watch.error = error
                self._wake(watch)
                if self.draining:
                    # This was the last poll. Waiters whose position the view has not reached fail with ShuttingDown.
                    return
                await asyncio.sleep(_POLL_EVERY_S)
        finally:
            self._watches.pop(watch.view.name, None)
            watch.task = None
            self._wake(watch)

    @staticmethod
    def _wake(watch: _Watch) -> None:
        polled, watch.polled = watch.polled, asyncio.Event()
        polled.set()

    def _position(self, view: View) -> Position | None:
        # Read the store first, so that the progress records include the batch of the store's position.
        state = self._views.state(view)
        self._causality.refresh(view)
        return state.position if state and not state.fault else None


def position_timeout(
    view: View, position: Position | None, error: HeadraceError | None = None
) -> PositionTimeout:
    """Build the error. It includes the position that the view has reached, so that the caller can see the lag."""
    reason = f": {error.message}" if error is not None else ""
    return PositionTimeout(
        f"view {view.name!r} did not reach the position in after= in time{reason}",
        hint="try again, or set a longer wait=; no data is lost",
        members={"view": view.name, "position": position_document(position) if position else None},
    )
