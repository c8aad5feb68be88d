"""One client connection in PostgreSQL's protocol, from startup to close. All client input is checked."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError
from headrace.serve.http.problem import problem_of
from headrace.serve.http.tokens import Caller
from headrace.serve.sql.statement import check_length
from headrace.serve.sql.wire import frames
from headrace.serve.sql.wire.catalog import SETTINGS
from headrace.serve.sql.wire.channel import Channel, ConnectionEnded, Login, start_up
from headrace.serve.sql.wire.command import (
    Command,
    DeclareCursor,
    FetchCursor,
    parse_command,
    split_statements,
    strip_comments,
)
from headrace.serve.sql.wire.context import MemoryQuota, WireContext
from headrace.serve.sql.wire.frames import (
    ColumnDescription,
    Fields,
    PgError,
    ProtocolViolation,
    StatementFailed,
    pg_error_of,
)
from headrace.serve.sql.wire.parameters import decode_parameter
from headrace.serve.sql.wire.prepared_statements import Portal, Prepared, PreparedStatements
from headrace.serve.sql.wire.rows import TEXT
from headrace.serve.sql.wire.statement_runner import StatementRunner

__all__ = ["Session"]

_EMPTY = frames.message(b"I")
_NO_ROWS = frames.message(b"n")
_IN_FAILED_TRANSACTION = PgError("25P02", "the transaction has failed: run ROLLBACK to end it")
_REFUSED_LOGINS = {
    "login": (401, "HR-SERVE-LOGIN"),
    "scope": (403, "HR-SERVE-SCOPE"),
    "full": (503, "HR-SERVE-FULL"),
}
"""HTTP status and error code that the access log shows for a refused connection, by reason."""
_REPORTED_SETTINGS = (
    "server_version", "server_encoding", "client_encoding", "DateStyle", "IntervalStyle", "TimeZone",
    "integer_datetimes", "standard_conforming_strings", "default_transaction_read_only", "in_hot_standby",
    "is_superuser",
)  # fmt: skip


class Session:
    """``enter`` raises if the connection limit is reached. A cancel request must contain ``number`` and ``secret``."""

    def __init__(
        self,
        context: WireContext,
        channel: Channel,
        number: int,
        quota: MemoryQuota,
        *,
        cancel: Callable[[int, int], None],
        enter: Callable[[Caller], None],
    ) -> None:
        self._context = context
        self._channel = channel
        self.number = number
        self.secret = secrets.randbits(31)
        self._statements = PreparedStatements(quota)
        self._cancel_other = cancel
        self._enter = enter
        self._login = Login("", "", "")
        self._runner = StatementRunner(context, channel, number)
        self._status = b"I"
        self._failed = False
        self._leaving = False
        self._idle: asyncio.Task[object] | None = None
        self._handlers = {
            b"P": self._parse,
            b"B": self._bind,
            b"D": self._describe,
            b"E": self._execute,
            b"C": self._close,
        }

    def cancel(self) -> None:
        self._runner.cancel()

    def drop(self) -> None:
        self._channel.drop()

    def leave(self) -> None:
        """Close the connection after the current statement, or immediately if it is idle."""
        self._leaving = True
        if self._idle is not None:
            self._idle.cancel()

    async def run(self) -> None:
        context, ended = self._context, self._context.metrics.ended
        try:
            async with asyncio.timeout(context.serve.limits.receive_s):
                login = await start_up(self._channel, context, self._cancel_other)
                if login is None:
                    return
                caller = login.caller(context.tokens)
                self._enter(caller)
                await self._welcome(login)
            while await self._next():
                pass
        except ConnectionEnded as error:
            ended[error.why] += 1
            if error.why in _REFUSED_LOGINS:
                self._runner.note_refused(*_REFUSED_LOGINS[error.why])
            await self._channel.send(error.message)
        except ProtocolViolation as error:
            ended["no message"] += 1
            await self._channel.send(frames.error("08P01", f"invalid message: {error}", fatal=True))
        except TimeoutError:
            ended["slow to send"] += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self._statements.clear()

    async def _welcome(self, login: Login) -> None:
        self._login = login
        out = [frames.message(b"R", struct.pack(">i", 0))]
        out += [frames.parameter_status(name, SETTINGS[name]) for name in _REPORTED_SETTINGS]
        out.append(frames.parameter_status("session_authorization", login.user))
        out.append(frames.message(b"K", struct.pack(">ii", self.number, self.secret)))
        out.append(frames.ready_for_query(self._status))
        await self._channel.send(b"".join(out))

    async def _next(self) -> bool:
        head, body = await self._message()
        if head == b"X":
            return False
        if head == b"S":
            self._failed = False
            if self._status == b"I":
                self._statements.end_transaction()
            await self._channel.send(frames.ready_for_query(self._status))
            return True
        if head == b"Q":
            await self._simple(body.text())
            return True
        if head not in self._handlers and head != b"H":
            raise ProtocolViolation(f"unknown message type {head!r}")
        if not self._failed and head != b"H":
            await self._send_error_of(lambda: self._handlers[head](body))
        return True

    async def _message(self) -> tuple[bytes, Fields]:
        stopping = frames.error("57P01", "the server is stopping", hint="reconnect in a moment", fatal=True)
        if self._leaving:
            raise ConnectionEnded("drained", stopping)
        self._idle = asyncio.current_task()
        try:
            return await self._channel.read_message()
        except asyncio.CancelledError:
            if not self._leaving:
                raise
            raise ConnectionEnded("drained", stopping) from None
        finally:
            self._idle = None

    async def _send_error_of(self, action: Callable[[], Awaitable[None]]) -> bool:
        """Run ``action``. If it fails, send the error to the client and return False."""
        try:
            await action()
        except HeadraceError as error:
            if problem_of(error, "").status == 500:
                # Log the details, which can contain paths and addresses. Do not send them to the client.
                self._context.report(error)
                await self._fail(_fault())
            else:
                await self._fail(pg_error_of(error))
            return False
        except StatementFailed as error:
            await self._fail(error.pg_error)
            return False
        except UnicodeDecodeError:
            await self._fail(PgError("22021", "a parameter is not UTF-8"))
            return False
        except (
            ProtocolViolation,
            ConnectionEnded,
            ConnectionError,
            TimeoutError,
            asyncio.IncompleteReadError,
        ):
            raise
        except Exception as error:
            self._context.report(error)
            await self._fail(_fault())
            return False
        return True

    async def _fail(self, error: PgError) -> None:
        self._failed = True
        self._context.metrics.errors[error.state] += 1
        if self._status == b"T":
            self._status = b"E"
        await self._channel.send(error.encode())

    async def _simple(self, text: str) -> None:
        has_statement = False

        async def run_all() -> None:
            nonlocal has_statement
            check_length(text)
            for sql in split_statements(text):
                if strip_comments(sql):
                    has_statement = True
                    await self._run_portal(Portal(Prepared(sql, []), [], []), 0, describe=True)

        if await self._send_error_of(run_all) and not has_statement:
            await self._channel.send(_EMPTY)
        self._failed = False
        if self._status == b"I":
            self._statements.end_transaction()
        await self._channel.send(frames.ready_for_query(self._status))

    async def _parse(self, body: Fields) -> None:
        name, sql, oids = body.text(), body.text(), body.ints()
        check_length(sql)
        self._statements.put_statement(name, Prepared(sql, oids))
        await self._channel.send(frames.message(b"1"))

    async def _bind(self, body: Fields) -> None:
        name, statement_name = body.text(), body.text()
        formats, values, results = body.shorts(), body.values(), body.shorts()
        prepared = self._statements.statement(statement_name)
        if len(formats) not in (0, 1, len(values)):
            raise ProtocolViolation(f"the client sent {len(formats)} formats for {len(values)} parameters")
        oids = [*prepared.oids, *[0] * len(values)]
        value_formats = formats * len(values) if len(formats) == 1 else formats or [0] * len(values)
        parameters = [
            decode_parameter(value, oid, binary=form == 1)
            for value, oid, form in zip(values, oids, value_formats, strict=False)
        ]
        self._statements.put_portal(name, Portal(prepared, parameters, results, name))
        await self._channel.send(frames.message(b"2"))

    async def _describe(self, body: Fields) -> None:
        kind, name = body.byte(), body.text()
        if kind == b"S":
            prepared = self._statements.statement(name)
            portal = prepared.describe()
            description_message = frames.parameter_description([oid or TEXT for oid in portal.prepared.oids])
        else:
            portal, description_message = self._statements.portal(name), b""
        await self._channel.send(description_message + await self._row_description(portal))

    async def _row_description(self, portal: Portal) -> bytes:
        sql = portal.prepared.sql
        command = parse_command(sql, self._runner.settings)
        if command is not None and command.fetched is not None and not command.fetched.moves:
            cursor = await self._open_cursor(command.fetched.name, portal)
            return frames.row_description(cursor.columns)
        if command is not None or not strip_comments(sql):
            shown_setting = command.shown_setting if command else None
            return _setting_description(shown_setting[0]) if shown_setting else _NO_ROWS
        if not portal.cursor:
            await self._run_once(portal)
        return frames.row_description(portal.columns)

    async def _execute(self, body: Fields) -> None:
        portal = self._statements.portal(body.text())
        await self._run_portal(portal, max(0, body.integer()), describe=False)

    async def _close(self, body: Fields) -> None:
        kind, name = body.byte(), body.text()
        (self._statements.drop_statement if kind == b"S" else self._statements.drop_portal)(name)
        await self._channel.send(frames.message(b"3"))

    # Results

    async def _run_portal(self, portal: Portal, rows_max: int, *, describe: bool) -> None:
        sql = portal.prepared.sql
        self._login.caller(self._context.tokens)
        command = parse_command(sql, self._runner.settings)
        if command is not None:
            await self._command(command, portal, describe=describe)
            return
        if not strip_comments(sql):
            await self._channel.send(_EMPTY)
            return
        await self._run_once(portal)
        head = frames.row_description(portal.columns) if describe else b""
        await self._send_rows(portal, rows_max, head, "SELECT")

    async def _send_rows(self, portal: Portal, rows_max: int, head: bytes, tag: str) -> None:
        assert portal.response is not None
        positions = self._runner.positions(portal.response)
        body, count = portal.take_rows(rows_max)
        if portal.done and portal.name is not None:
            self._statements.put_portal(portal.name, portal)
        # FETCH always completes after its rows. Execute instead suspends a portal that has more rows.
        is_complete = portal.done or tag != "SELECT"
        tail = frames.message(b"C", frames.text(f"{tag} {count}")) if is_complete else frames.message(b"s")
        await self._channel.send(head + body + positions + tail)

    async def _command(self, command: Command, portal: Portal, *, describe: bool) -> None:
        if command.pg_error is not None:
            raise StatementFailed(PgError(*command.pg_error))
        if command.tag == "COMMIT" and self._status == b"E":
            command = Command("ROLLBACK", b"I")
        if self._status == b"E" and not command.status:
            raise StatementFailed(_IN_FAILED_TRANSACTION)
        if command.status == b"I":
            self._statements.end_transaction()
        self._status = command.status or self._status
        out = b""
        if command.shown_setting is not None:
            name, value = command.shown_setting
            raw = value.encode()
            out = _setting_description(name) if describe else b""
            out += frames.message(b"D", struct.pack(">hi", 1, len(raw)), raw)
        if command.setting is not None:
            self._runner.change(*command.setting)
        if command.drops is not None:
            self._statements.drop(*command.drops)
        if command.declared is not None:
            await self._declare(command.declared, portal)
        if command.fetched is not None:
            await self._fetch(command.fetched, portal, describe=describe)
            return
        await self._channel.send(out + frames.message(b"C", frames.text(command.tag)))

    async def _declare(self, declared: DeclareCursor, portal: Portal) -> None:
        if self._status == b"I" and not declared.hold:
            raise StatementFailed(
                PgError("25P01", "a cursor needs a transaction", hint="run BEGIN, or declare it WITH HOLD")
            )
        prepared = Prepared(declared.sql, portal.prepared.oids)
        description = Portal(prepared, portal.values, [], describe_only=True)
        await self._run_once(description)
        formats = [1] if declared.binary else []
        cursor = Portal(prepared, portal.values, formats, declared.name, cursor=True, hold=declared.hold)
        cursor.columns = description.columns
        self._statements.put_portal(declared.name, cursor)

    async def _open_cursor(self, name: str, fetch: Portal) -> Portal:
        """Run the cursor's statement at the cursor's first FETCH. That FETCH decides between text and binary format."""
        portal = self._statements.cursor(name)
        if fetch.describe_only:
            return portal
        if portal.response is None:
            portal.formats = portal.formats or fetch.formats
            await self._run_once(portal)
            if portal.skipped:
                portal.take_rows(portal.skipped)
        elif fetch.formats and (portal.formats or [0]) != fetch.formats:
            raise StatementFailed(
                PgError("0A000", "a cursor cannot change its format (text or binary) after its first FETCH")
            )
        return portal

    async def _fetch(self, fetched: FetchCursor, fetch: Portal, *, describe: bool) -> None:
        portal = self._statements.cursor(fetched.name)
        if fetched.moves:
            count = fetched.rows_max
            if portal.response is not None:
                _, count = portal.take_rows(fetched.rows_max)
            else:
                portal.skipped += fetched.rows_max
            await self._channel.send(frames.message(b"C", frames.text(f"MOVE {count}")))
            return
        await self._open_cursor(fetched.name, fetch)
        head = frames.row_description(portal.columns) if describe else b""
        await self._send_rows(portal, fetched.rows_max, head, "FETCH")

    async def _run_once(self, portal: Portal) -> None:
        """Run the portal's statement once, when its result is first needed."""
        if self._status == b"E":
            raise StatementFailed(_IN_FAILED_TRANSACTION)
        caller = self._login.caller(self._context.tokens)
        if portal.response is None:
            response = await self._runner.run(caller, self._login, portal)
            portal.set_response(response)
            if portal.name is not None:
                self._statements.put_portal(portal.name, portal)


def _setting_description(name: str) -> bytes:
    return frames.row_description([ColumnDescription(name, TEXT, -1, False)])


def _fault() -> PgError:
    return PgError("XX000", "internal error")
