"""A subscription to a statement. It runs the statement again whenever one of its views has a new position.

When a row changes, the subscription cannot determine which rows of a join or an aggregate are affected. So it sends
the whole result, but only if the result differs from the last one. In each result, all rows of a view are from one
position.

To limit the cost, it pauses after each run for at least a second, and for several times the run time. All changes
during the pause lead to a single run. Between runs it reads only the positions of the views, not their rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from headrace.model.declarations import View
from headrace.serve.errors import ShuttingDown, TooBusy, Unavailable
from headrace.serve.http.context import ServeContext
from headrace.serve.http.tokens import Caller
from headrace.serve.query.position_token import position_document
from headrace.serve.sql.messages import QueryResponse
from headrace.serve.sql.service import SqlService, Statement
from headrace.serve.subscribe.messages import Message, new_message
from headrace.serve.subscribe.subscriber import SubscriberEnded
from headrace.stores.position import Position

__all__ = ["SqlColumn", "SqlSubscription"]

_BYTES_MAX = 1 << 20
_POLL_S = 0.5
_PAUSE_S_MIN = 1.0
_PAUSE_PER_RUN_TIME = 4


class SqlColumn(msgspec.Struct, frozen=True):
    name: str
    type: str


class SqlSubscription:
    """``authorize`` raises if the caller may no longer read a view, for example after its token was revoked."""

    def __init__(
        self,
        context: ServeContext,
        service: SqlService,
        caller: Caller,
        authorize: Callable[[str], object],
        statement: Statement,
        cursor: str | None,
    ) -> None:
        self._context = context
        self._service = service
        self._caller = caller
        self._authorize = authorize
        self._statement = statement
        self.cursor = cursor
        self._ended = asyncio.Event()
        self._response: QueryResponse | None = None
        self._views: list[tuple[str, View, Position]] = []
        """Per table: its name, the view that serves it, and the position that was read."""

    async def prepare(self) -> None:
        """Run the statement once, so that its errors are raised before the response starts."""
        await self._run()

    def end(self) -> None:
        self._ended.set()

    async def messages(self) -> AsyncGenerator[Message]:
        """Yield messages until the subscription ends. Raise ``SubscriberEnded`` once ``end`` was called, or the error
        to send as the last message.
        """
        clock, heartbeat_s = self._context.clock, self._context.limits.heartbeat_s
        sent_s, pause_s = clock.steady(), _PAUSE_S_MIN
        while True:
            if self._response is not None:
                yield self._result(self._response)
                self._response, sent_s = None, clock.steady()
            await self._pause(pause_s)
            while not await self._has_moved():
                await self._pause(_POLL_S)
                if clock.steady() - sent_s >= heartbeat_s:
                    yield new_message("heartbeat", {"positions": self._positions(), "cursor": self.cursor})
                    sent_s = clock.steady()
            started_s = clock.steady()
            # After these errors the positions still differ, so the loop runs the statement again.
            with contextlib.suppress(Unavailable, TooBusy):
                await self._run()
            pause_s = max(_PAUSE_S_MIN, _PAUSE_PER_RUN_TIME * (clock.steady() - started_s))

    async def _run(self) -> None:
        statement, service, caller = self._statement, self._service, self._caller
        response = await service.answer(
            caller, statement.sql, statement.parameters, "json", bytes_max=_BYTES_MAX
        )
        self._views = [
            (read.name, service.view(caller, read.name), read.position) for read in response.positions
        ]
        self._response = response

    async def _has_moved(self) -> bool:
        for name, view, position in self._views:
            if self._service.view(self._caller, name) is not view:
                return True
            current = await self._service.position(view)
            if current is not None and _identity(current) != _identity(position):
                return True
        return False

    async def _pause(self, seconds: float) -> None:
        deadline = self._context.clock.steady() + seconds
        while (left_s := deadline - self._context.clock.steady()) > 0:
            self._check_running()
            try:
                async with asyncio.timeout(min(left_s, _POLL_S)):
                    await self._ended.wait()
            except TimeoutError:
                continue
        self._check_running()

    def _check_running(self) -> None:
        if self._ended.is_set():
            raise SubscriberEnded
        if self._context.draining:
            raise ShuttingDown("the server is stopping", hint="reconnect with the cursor")
        for name, _, _ in self._views:
            self._authorize(self._service.find_name(self._caller, name) or name)

    def _result(self, response: QueryResponse) -> Message:
        columns = [SqlColumn(column.name, column.type) for column in response.columns]
        digest = hashlib.sha256(msgspec.json.encode(columns) + b"\0" + response.body).hexdigest()[:32]
        body: dict[str, Any] = {"positions": self._positions(), "cursor": digest}
        if digest == self.cursor:
            return new_message("same", body)
        self.cursor = digest
        return new_message("result", {"columns": columns, "rows": msgspec.Raw(response.body), **body})

    def _positions(self) -> dict[str, Any]:
        return {name: position_document(position) for name, _, position in self._views}


def _identity(position: Position) -> tuple[Any, ...]:
    """Return the position without its time, to compare positions."""
    return position.topic_id, position.generation, position.batch, dict(position.offsets)
