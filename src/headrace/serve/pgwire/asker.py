"""Statements of one connection on their way to an answer: one at a time, stopped when that is asked for or nobody is
there any more, counted, and noted in the access log without their text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError
from headrace.serve.parameter import duration
from headrace.serve.pgwire.channel import Channel
from headrace.serve.pgwire.command import AFTER, POSITION, POSITIONS, WAIT
from headrace.serve.pgwire.frames import parameter_status
from headrace.serve.pgwire.greeting import Login
from headrace.serve.pgwire.portal import Portal
from headrace.serve.pgwire.splitting import bare
from headrace.serve.pgwire.turning import turned_text
from headrace.serve.position_json import position_json
from headrace.serve.problem import problem_of
from headrace.serve.sql.asking import Asking
from headrace.serve.sql.errors import SqlFailed, SqlUnfit
from headrace.serve.sql.messages import Answered
from headrace.serve.token import Reach, Token, token_of
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Asker"]

_LOOK_S = 0.5
"""How often it is looked whether the other side is still there."""
_ROUTE = "postgres"
_wait = duration(WAIT, "")


class Asker:
    def __init__(self, served: Served, channel: Channel, number: int) -> None:
        self._served = served
        self._channel = channel
        self._number = number
        self._asked = 0
        self._running: asyncio.Task[Answered] | None = None
        self._cancelled = False
        self.own = {AFTER: "", WAIT: "", POSITION: "", POSITIONS: "{}"}
        """Our settings of the connection (``headrace.serve.pgwire.command``)."""

    def cancel(self) -> None:
        if self._running is not None:
            self._cancelled = True
            self._running.cancel()

    def change(self, name: str, value: str) -> None:
        """One of our settings, if it can be that."""
        if value and name == AFTER:
            Token.told(value)
        if value and name == WAIT:
            self._wait_s(value)
        self.own[name] = value

    @staticmethod
    def _wait_s(value: str) -> float:
        try:
            return float(_wait.read(value))
        except ValueError as error:
            raise SqlUnfit(f"{WAIT} is {error}, and not {value[:40]!r}") from None

    async def ask(self, caller: Caller, login: Login, portal: Portal) -> Answered:
        served, counts = self._served, self._served.wire
        began = served.clock.steady()
        self._asked += 1
        counts.under_way += 1
        rows = size = 0
        status, code = 200, ""
        try:
            answered = await self._awaited(self._asking(caller, login, portal, began))
            rows, size = answered.rows, len(answered.body)
            return answered
        except HeadraceError as error:
            status, code = problem_of(error, "").status, error.code
            raise
        except BaseException:
            status, code = 499, "gone"
            raise
        finally:
            counts.under_way -= 1
            took_s = served.clock.steady() - began
            counts.note(took_s, rows)
            self._note("SELECT", caller.name, status, code, took_s, size)

    def note_refused(self, status: int, code: str) -> None:
        """A login that was refused, or a token that is not known any more."""
        self._note("LOGIN", "", status, code, 0.0, 0)

    def _note(self, method: str, caller: str, status: int, code: str, took_s: float, size: int) -> None:
        served = self._served
        served.access_log.note(
            now_ms=served.clock.now_ms(),
            request_id=f"pg-{self._number}-{self._asked}",
            method=method,
            route=_ROUTE,
            names={},
            caller=caller,
            peer=self._channel.peer,
            status=status,
            code=code,
            took_s=took_s,
            sent_bytes=size,
        )

    async def _asking(self, caller: Caller, login: Login, portal: Portal, began: float) -> Answered:
        prepared, limits = portal.prepared, self._served.limits
        token = Token.told(self.own[AFTER]) if self.own[AFTER] and not portal.looks else None
        wait_s = self._wait_s(self.own[WAIT]) if self.own[WAIT] else limits.wait_s_default
        return await Asking(self._served, caller).answer(
            turned_text(bare(prepared.sql)),
            portal.values,
            "rows",
            token,
            began + min(wait_s, limits.wait_s_max),
            binary=[one == 1 for one in portal.forms],
            parameter_types=prepared.oids,
            user=login.user,
            database=login.database,
            looks=portal.looks,
        )

    async def _awaited(self, asking: Coroutine[Any, Any, Answered]) -> Answered:
        self._running = task = asyncio.create_task(asking)
        try:
            while not (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
                if self._channel.is_gone:
                    raise ConnectionError
            return task.result()
        except asyncio.CancelledError:
            if self._cancelled:
                raise SqlFailed("HR-SERVE-SQL-TIME", 504, "the statement was stopped, as was asked") from None
            raise
        finally:
            self._running, self._cancelled = None, False
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def positions(self, answered: Answered) -> bytes:
        """What is new in them, as settings that clients keep; whoever asks with SHOW is told too."""
        reached: dict[str, Reach] = {}
        for one in answered.stood:
            reached |= token_of(one.position).topics
        told = {
            POSITION: Token.of(reached).tell() if reached else "",
            POSITIONS: msgspec.json.encode(
                {one.name: position_json(one.position) for one in answered.stood}
            ).decode(),
        }
        new = {name: value for name, value in told.items() if self.own[name] != value}
        self.own |= new
        return b"".join(parameter_status(name, value) for name, value in new.items())
