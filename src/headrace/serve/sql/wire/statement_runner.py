"""Runs the statements of one connection, one at a time.

A statement stops when the client cancels it or disconnects. Metrics count each statement, and the access log records it
without its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.serve.errors import SqlFailed, SqlInvalid
from headrace.serve.http.problem import problem_of
from headrace.serve.http.route import duration
from headrace.serve.http.tokens import Caller
from headrace.serve.query.position_token import PositionToken, merged_token, position_document
from headrace.serve.sql.messages import QueryResponse
from headrace.serve.sql.wire.channel import Channel, Login
from headrace.serve.sql.wire.command import AFTER, POSITION, POSITIONS, WAIT, strip_comments
from headrace.serve.sql.wire.context import WireContext
from headrace.serve.sql.wire.dialect import translate_text
from headrace.serve.sql.wire.frames import parameter_status
from headrace.serve.sql.wire.prepared_statements import Portal

__all__ = ["StatementRunner"]

_CHECK_EVERY_S = 0.5
"""How often to check that the client is still connected."""
_ROUTE = "postgres"
_wait = duration(WAIT, "")


class StatementRunner:
    def __init__(self, context: WireContext, channel: Channel, number: int) -> None:
        self._context = context
        self._channel = channel
        self._number = number
        self._count = 0
        self._running: asyncio.Task[QueryResponse] | None = None
        self._cancelled = False
        self.settings = {AFTER: "", WAIT: "", POSITION: "", POSITIONS: "{}"}
        """The connection's values of Headrace's settings (``command.py``)."""

    def cancel(self) -> None:
        if self._running is not None:
            self._cancelled = True
            self._running.cancel()

    def change(self, name: str, value: str) -> None:
        """Change one of Headrace's settings. Raise for an invalid value."""
        if value and name == AFTER:
            PositionToken.parse(value)
        if value and name == WAIT:
            self._wait_s(value)
        self.settings[name] = value

    @staticmethod
    def _wait_s(value: str) -> float:
        try:
            return float(_wait.parse(value))
        except ValueError as error:
            raise SqlInvalid(f"{WAIT} must be {error}, not {value[:40]!r}") from None

    async def run(self, caller: Caller, login: Login, portal: Portal) -> QueryResponse:
        clock, metrics = self._context.serve.clock, self._context.metrics
        started_s = clock.steady()
        self._count += 1
        metrics.under_way += 1
        rows = size = 0
        status, code = 200, ""
        try:
            response = await self._run_cancellable(self._query(caller, login, portal, started_s))
            rows, size = response.rows, len(response.body)
            return response
        except HeadraceError as error:
            status, code = problem_of(error, "").status, error.code
            raise
        except BaseException:
            status, code = 499, "gone"
            raise
        finally:
            metrics.under_way -= 1
            took_s = clock.steady() - started_s
            metrics.note(took_s, rows)
            self._note("SELECT", caller.name, status, code, took_s, size)

    def note_refused(self, status: int, code: str) -> None:
        """Log a refused login, or a token that is no longer valid."""
        self._note("LOGIN", "", status, code, 0.0, 0)

    def _note(self, method: str, caller: str, status: int, code: str, took_s: float, size: int) -> None:
        serve = self._context.serve
        serve.access_log.note(
            now_ms=serve.clock.now_ms(),
            request_id=f"pg-{self._number}-{self._count}",
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

    async def _query(self, caller: Caller, login: Login, portal: Portal, started_s: float) -> QueryResponse:
        prepared, limits = portal.prepared, self._context.serve.limits
        token = (
            PositionToken.parse(self.settings[AFTER])
            if self.settings[AFTER] and not portal.describe_only
            else None
        )
        wait_s = self._wait_s(self.settings[WAIT]) if self.settings[WAIT] else limits.wait_s_default
        return await self._context.service.answer(
            caller,
            translate_text(strip_comments(prepared.sql)),
            portal.values,
            "rows",
            token,
            started_s + min(wait_s, limits.wait_s_max),
            binary=[form == 1 for form in portal.formats],
            parameter_types=prepared.oids,
            user=login.user,
            database=login.database,
            describe_only=portal.describe_only,
        )

    async def _run_cancellable(self, query: Coroutine[Any, Any, QueryResponse]) -> QueryResponse:
        self._running = task = asyncio.create_task(query)
        try:
            while not (await asyncio.wait({task}, timeout=_CHECK_EVERY_S))[0]:
                if self._channel.is_disconnected:
                    raise ConnectionError
            return task.result()
        except asyncio.CancelledError:
            if self._cancelled:
                raise SqlFailed("HR-SERVE-SQL-TIME", 504, "the client cancelled the statement") from None
            raise
        finally:
            self._running, self._cancelled = None, False
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def positions(self, response: QueryResponse) -> bytes:
        """Encode the changed positions as ParameterStatus messages, which clients store. SHOW also returns them."""
        positions = {read.name: read.position for read in response.positions}
        settings = {
            POSITION: merged_token(positions.values()).encode() if positions else "",
            POSITIONS: msgspec.json.encode(
                {name: position_document(position) for name, position in positions.items()}
            ).decode(),
        }
        changed = {name: value for name, value in settings.items() if self.settings[name] != value}
        self.settings |= changed
        return b"".join(parameter_status(name, value) for name, value in changed.items())
