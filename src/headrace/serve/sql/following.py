"""A statement that is answered again whenever a view that it reads has moved: for whoever follows a result.

Which rows of a join or a sum a change touches is not known, so the whole result is told, each time of one position per
view, and only if it is another than the last one. So that this stays cheap: a statement rests after each answer, for a
second at least and for several times as long as it took, and what came meanwhile is one answer. Where the views are is
looked at in between; that reads no rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.view import View
from headrace.serve.errors import Draining, NotServing, TooBusy
from headrace.serve.position_json import position_json
from headrace.serve.sql.asking import Asking, Parameter
from headrace.serve.sql.messages import Answered
from headrace.serve.subscriptions.login import expect_allowed
from headrace.serve.subscriptions.message import Message, message
from headrace.serve.subscriptions.subscriber import Gone
from headrace.serve.tokens import Caller
from headrace.views.position import Position

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["SqlFollower"]

_BYTES_MAX = 1 << 20
_LOOK_S = 0.5
_REST_S = 1.0
_REST_TIMES = 4


class SqlFollower:
    """``caller`` is who asked, and ``token`` what by, which may be revoked meanwhile."""

    def __init__(
        self,
        served: Served,
        caller: Caller,
        token: str | None,
        sql: str,
        parameters: Sequence[Parameter],
        cursor: str | None,
    ) -> None:
        self._served = served
        self._asking = Asking(served, caller)
        self._token = token
        self._sql = sql
        self._parameters = parameters
        self.cursor = cursor
        self._gone = asyncio.Event()
        self._answered: Answered | None = None
        self._views: list[tuple[str, View, Position]] = []
        """What the statement calls them, those that answer, and where they stood."""

    async def prepare(self) -> None:
        """The first answer. Raises what can be known before anything is told."""
        await self._answer()

    def end(self) -> None:
        self._gone.set()

    async def messages(self) -> AsyncGenerator[Message]:
        """Ends by raising: what there is to say at the end, or ``Gone``."""
        clock, heartbeat_s = self._served.clock, self._served.limits.heartbeat_s
        told, rest_s = clock.steady(), _REST_S
        while True:
            if self._answered is not None:
                yield self._told(self._answered)
                self._answered, told = None, clock.steady()
            await self._rest(rest_s)
            while not await self._has_moved():
                await self._rest(_LOOK_S)
                if clock.steady() - told >= heartbeat_s:
                    yield message("heartbeat", {"positions": self._positions(), "cursor": self.cursor})
                    told = clock.steady()
            began = clock.steady()
            # What fails so is asked again: the views are still elsewhere.
            with contextlib.suppress(NotServing, TooBusy):
                await self._answer()
            rest_s = max(_REST_S, _REST_TIMES * (clock.steady() - began))

    async def _answer(self) -> None:
        answered = await self._asking.answer(self._sql, self._parameters, "json", bytes_max=_BYTES_MAX)
        self._views = [(one.name, self._asking.view(one.name), one.position) for one in answered.stood]
        self._answered = answered

    async def _has_moved(self) -> bool:
        for name, view, position in self._views:
            if self._asking.view(name) is not view:
                return True
            standing = await self._quietly(lambda view=view: self._served.views.standing(view), view)  # type: ignore[misc]
            if standing is not None and _where(standing.position) != _where(position):
                return True
        return False

    async def _quietly(self, do: Callable[[], Any], view: View) -> Any:
        """None where a store does not answer now: it is looked at again."""
        try:
            return await self._served.work.run(do, self._served.limits.read_s, view.store)
        except (NotServing, TooBusy):
            return None

    async def _rest(self, seconds: float) -> None:
        deadline = self._served.clock.steady() + seconds
        while (left := deadline - self._served.clock.steady()) > 0:
            self._expect_wanted()
            try:
                async with asyncio.timeout(min(left, _LOOK_S)):
                    await self._gone.wait()
            except TimeoutError:
                continue
        self._expect_wanted()

    def _expect_wanted(self) -> None:
        if self._gone.is_set():
            raise Gone
        if self._served.draining:
            raise Draining("the server is about to stop", hint="come again, with the cursor")
        for name, _, _ in self._views:
            expect_allowed(self._served, self._token, self._asking.spelled(name) or name)

    def _told(self, answered: Answered) -> Message:
        columns = [{"name": one.name, "type": one.type} for one in answered.columns]
        digest = hashlib.sha256(msgspec.json.encode(columns) + b"\0" + answered.body).hexdigest()[:32]
        told: dict[str, Any] = {"positions": self._positions(), "cursor": digest}
        if digest == self.cursor:
            return message("same", told)
        self.cursor = digest
        return message("result", {"columns": columns, "rows": msgspec.Raw(answered.body), **told})

    def _positions(self) -> dict[str, Any]:
        return {name: position_json(position) for name, _, position in self._views}


def _where(position: Position) -> tuple[Any, ...]:
    """But for when that was."""
    return position.topic_id, position.generation, position.batch, dict(position.offsets)
