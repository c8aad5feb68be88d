"""One connection: who it is, and its messages from the first to the last. Nothing that comes in is trusted."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.serve.pgwire import frames
from headrace.serve.pgwire.asker import Asker
from headrace.serve.pgwire.catalogue import SETTINGS
from headrace.serve.pgwire.channel import Channel, Ended
from headrace.serve.pgwire.command import Command, command_of
from headrace.serve.pgwire.cursor import Declared, Fetched
from headrace.serve.pgwire.frames import Described, Fields, Unfit
from headrace.serve.pgwire.greeting import Login, greeted
from headrace.serve.pgwire.kept import Kept
from headrace.serve.pgwire.parameters import value_of
from headrace.serve.pgwire.portal import Portal, Prepared
from headrace.serve.pgwire.rows import TEXT
from headrace.serve.pgwire.shelf import Shelf
from headrace.serve.pgwire.splitting import bare, statements_of
from headrace.serve.pgwire.sql_state import Trouble, Troubled, trouble_of
from headrace.serve.problem import problem_of
from headrace.serve.sql.statement import expect_short
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Session"]

_EMPTY = frames.message(b"I")
_NO_ROWS = frames.message(b"n")
_FAILED_BEFORE = Trouble("25P02", "the transaction has failed: ROLLBACK ends it")
_REFUSED_LOGINS = {
    "login": (401, "HR-SERVE-LOGIN"),
    "scope": (403, "HR-SERVE-SCOPE"),
    "full": (503, "HR-SERVE-FULL"),
}
"""What the access log has of a connection that is refused, by why it ended."""
_TOLD_AT_FIRST = (
    "server_version", "server_encoding", "client_encoding", "DateStyle", "IntervalStyle", "TimeZone",
    "integer_datetimes", "standard_conforming_strings", "default_transaction_read_only", "in_hot_standby",
    "is_superuser",
)  # fmt: skip


class Session:
    """``number`` and ``secret`` are what a cancel request names. ``enter`` raises where there are too many."""

    def __init__(
        self,
        served: Served,
        channel: Channel,
        number: int,
        kept: Kept,
        *,
        anybody: Caller,
        cancel: Callable[[int, int], None],
        enter: Callable[[Caller], None],
        report: Callable[[BaseException], None],
    ) -> None:
        self._served = served
        self._channel = channel
        self.number = number
        self.secret = secrets.randbits(31)
        self._shelf = Shelf(kept)
        self._anybody = anybody
        self._cancel_other = cancel
        self._enter = enter
        self._report = report
        self._login = Login("", "", "")
        self._asker = Asker(served, channel, number)
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
        self._asker.cancel()

    def drop(self) -> None:
        self._channel.drop()

    def leave(self) -> None:
        """When what it does is done; at once, if that is nothing."""
        self._leaving = True
        if self._idle is not None:
            self._idle.cancel()

    # From the first byte

    async def run(self) -> None:
        ended = self._served.wire.ended
        try:
            async with asyncio.timeout(self._served.limits.receive_s):
                login = await greeted(self._channel, self._served, self._cancel_other)
                if login is None:
                    return
                caller = login.caller(self._served, self._anybody)
                self._enter(caller)
                await self._welcome(login)
            while await self._next():
                pass
        except Ended as error:
            ended[error.why] += 1
            if error.why in _REFUSED_LOGINS:
                self._asker.note_refused(*_REFUSED_LOGINS[error.why])
            await self._channel.send(error.told)
        except Unfit as error:
            ended["no message"] += 1
            await self._channel.send(frames.error("08P01", f"that is no message: {error}", fatal=True))
        except TimeoutError:
            ended["slow to send"] += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self._shelf.clear()

    async def _welcome(self, login: Login) -> None:
        self._login = login
        out = [frames.message(b"R", struct.pack(">i", 0))]
        out += [frames.parameter_status(name, SETTINGS[name]) for name in _TOLD_AT_FIRST]
        out.append(frames.parameter_status("session_authorization", login.user))
        out.append(frames.message(b"K", struct.pack(">ii", self.number, self.secret)))
        out.append(frames.notice_of_ready(self._status))
        await self._channel.send(b"".join(out))

    # Then on

    async def _next(self) -> bool:
        head, body = await self._message()
        if head == b"X":
            return False
        if head == b"S":
            self._failed = False
            if self._status == b"I":
                self._shelf.end_transaction()
            await self._channel.send(frames.notice_of_ready(self._status))
            return True
        if head == b"Q":
            await self._simple(body.text())
            return True
        if head not in self._handlers and head != b"H":
            raise Unfit(f"{head!r} begins no message that is known here")
        if not self._failed and head != b"H":
            await self._guarded(lambda: self._handlers[head](body))
        return True

    async def _message(self) -> tuple[bytes, Fields]:
        told = frames.error(
            "57P01", "the server is about to stop", hint="connect again in a moment", fatal=True
        )
        if self._leaving:
            raise Ended("drained", told)
        self._idle = asyncio.current_task()
        try:
            return await self._channel.next()
        except asyncio.CancelledError:
            if not self._leaving:
                raise
            raise Ended("drained", told) from None
        finally:
            self._idle = None

    async def _guarded(self, do: Callable[[], Awaitable[None]]) -> bool:
        """False if it failed, and that was told."""
        try:
            await do()
        except HeadraceError as error:
            if problem_of(error, "").status == 500:
                # What it was, with its paths and addresses, is for the log, not for whoever asked.
                self._report(error)
                await self._fail(_fault())
            else:
                await self._fail(trouble_of(error))
            return False
        except Troubled as error:
            await self._fail(error.trouble)
            return False
        except UnicodeDecodeError:
            await self._fail(Trouble("22021", "a parameter is not UTF-8"))
            return False
        except (Unfit, Ended, ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            raise
        except Exception as error:
            self._report(error)
            await self._fail(_fault())
            return False
        return True

    async def _fail(self, trouble: Trouble) -> None:
        self._failed = True
        self._served.wire.errors[trouble.state] += 1
        if self._status == b"T":
            self._status = b"E"
        await self._channel.send(trouble.told())

    async def _simple(self, text: str) -> None:
        sent = False

        async def each() -> None:
            nonlocal sent
            expect_short(text)
            for sql in statements_of(text):
                if bare(sql):
                    sent = True
                    await self._perform(Portal(Prepared(sql, []), [], []), 0, describe=True)

        if await self._guarded(each) and not sent:
            await self._channel.send(_EMPTY)
        self._failed = False
        if self._status == b"I":
            self._shelf.end_transaction()
        await self._channel.send(frames.notice_of_ready(self._status))

    async def _parse(self, body: Fields) -> None:
        name, sql, oids = body.text(), body.text(), body.ints()
        expect_short(sql)
        self._shelf.put_statement(name, Prepared(sql, oids))
        await self._channel.send(frames.message(b"1"))

    async def _bind(self, body: Fields) -> None:
        name, of = body.text(), body.text()
        forms, values, results = body.shorts(), body.values(), body.shorts()
        prepared = self._shelf.statement(of)
        if len(forms) not in (0, 1, len(values)):
            raise Unfit(f"{len(forms)} forms of {len(values)} parameters")
        oids = [*prepared.oids, *[0] * len(values)]
        spread = forms * len(values) if len(forms) == 1 else forms or [0] * len(values)
        made = [
            value_of(one, oid, binary=form == 1) for one, oid, form in zip(values, oids, spread, strict=False)
        ]
        self._shelf.put_portal(name, Portal(prepared, made, results, name))
        await self._channel.send(frames.message(b"2"))

    async def _describe(self, body: Fields) -> None:
        kind, name = body.byte(), body.text()
        if kind == b"S":
            prepared = self._shelf.statement(name)
            portal = prepared.looked_at()
            told = frames.parameter_description([one or TEXT for one in portal.prepared.oids])
        else:
            portal, told = self._shelf.portal(name), b""
        await self._channel.send(told + await self._description(portal))

    async def _description(self, portal: Portal) -> bytes:
        sql = portal.prepared.sql
        command = command_of(sql, self._asker.own)
        if command is not None and command.fetched is not None and not command.fetched.moves:
            opened = await self._opened(command.fetched.name, portal)
            return frames.row_description(opened.columns)
        if command is not None or not bare(sql):
            shown = command.shown if command else None
            return _described_setting(shown[0]) if shown else _NO_ROWS
        if not portal.cursor:
            await self._answer(portal)
        return frames.row_description(portal.columns)

    async def _execute(self, body: Fields) -> None:
        portal = self._shelf.portal(body.text())
        await self._perform(portal, max(0, body.whole()), describe=False)

    async def _close(self, body: Fields) -> None:
        kind, name = body.byte(), body.text()
        (self._shelf.drop_statement if kind == b"S" else self._shelf.drop_portal)(name)
        await self._channel.send(frames.message(b"3"))

    # Answers

    async def _perform(self, portal: Portal, rows_max: int, *, describe: bool) -> None:
        sql = portal.prepared.sql
        self._login.caller(self._served, self._anybody)
        command = command_of(sql, self._asker.own)
        if command is not None:
            await self._command(command, portal, describe=describe)
            return
        if not bare(sql):
            await self._channel.send(_EMPTY)
            return
        await self._answer(portal)
        head = frames.row_description(portal.columns) if describe else b""
        await self._send_rows(portal, rows_max, head, "SELECT")

    async def _send_rows(self, portal: Portal, rows_max: int, head: bytes, tag: str) -> None:
        assert portal.answered is not None
        positions = self._asker.positions(portal.answered)
        body, count = portal.some(rows_max)
        if portal.done and portal.name is not None:
            self._shelf.put_portal(portal.name, portal)
        # A cursor's statement is complete with the rows that it was asked for; a portal then has a pause.
        whole = portal.done or tag != "SELECT"
        tail = frames.message(b"C", frames.text(f"{tag} {count}")) if whole else frames.message(b"s")
        await self._channel.send(head + body + positions + tail)

    async def _command(self, command: Command, portal: Portal, *, describe: bool) -> None:
        if command.trouble is not None:
            raise Troubled(Trouble(*command.trouble))
        if command.tag == "COMMIT" and self._status == b"E":
            command = Command("ROLLBACK", b"I")
        if self._status == b"E" and not command.status:
            raise Troubled(_FAILED_BEFORE)
        if command.status == b"I":
            self._shelf.end_transaction()
        self._status = command.status or self._status
        out = b""
        if command.shown is not None:
            name, value = command.shown
            raw = value.encode()
            out = _described_setting(name) if describe else b""
            out += frames.message(b"D", struct.pack(">hi", 1, len(raw)), raw)
        if command.setting is not None:
            self._asker.change(*command.setting)
        if command.drops is not None:
            self._shelf.drop(*command.drops)
        if command.declared is not None:
            await self._declare(command.declared, portal)
        if command.fetched is not None:
            await self._fetch(command.fetched, portal, describe=describe)
            return
        await self._channel.send(out + frames.message(b"C", frames.text(command.tag)))

    async def _declare(self, declared: Declared, portal: Portal) -> None:
        if self._status == b"I" and not declared.hold:
            raise Troubled(
                Trouble("25P01", "a cursor lives in a transaction", hint="BEGIN one, or declare it WITH HOLD")
            )
        prepared = Prepared(declared.sql, portal.prepared.oids)
        looked = Portal(prepared, portal.values, [], looks=True)
        await self._answer(looked)
        forms = [1] if declared.binary else []
        made = Portal(prepared, portal.values, forms, declared.name, cursor=True, hold=declared.hold)
        made.columns = looked.columns
        self._shelf.put_portal(declared.name, made)

    async def _opened(self, name: str, asking: Portal) -> Portal:
        """A cursor's rows are asked for with the first FETCH, which says whether they come as text or binary."""
        portal = self._shelf.cursor(name)
        if asking.looks:
            return portal
        if portal.answered is None:
            portal.forms = portal.forms or asking.forms
            await self._answer(portal)
            if portal.skipped:
                portal.some(portal.skipped)
        elif asking.forms and (portal.forms or [0]) != asking.forms:
            raise Troubled(
                Trouble("0A000", "the rows of a cursor come as text or as binary, as with its first FETCH")
            )
        return portal

    async def _fetch(self, fetched: Fetched, asking: Portal, *, describe: bool) -> None:
        portal = self._shelf.cursor(fetched.name)
        if fetched.moves:
            count = fetched.rows_max
            if portal.answered is not None:
                _, count = portal.some(fetched.rows_max)
            else:
                portal.skipped += fetched.rows_max
            await self._channel.send(frames.message(b"C", frames.text(f"MOVE {count}")))
            return
        await self._opened(fetched.name, asking)
        head = frames.row_description(portal.columns) if describe else b""
        await self._send_rows(portal, fetched.rows_max, head, "FETCH")

    async def _answer(self, portal: Portal) -> None:
        """Asked once, when it is first needed."""
        if self._status == b"E":
            raise Troubled(_FAILED_BEFORE)
        caller = self._login.caller(self._served, self._anybody)
        if portal.answered is None:
            answered = await self._asker.ask(caller, self._login, portal)
            portal.is_answered(answered)
            if portal.name is not None:
                self._shelf.put_portal(portal.name, portal)


def _described_setting(name: str) -> bytes:
    return frames.row_description([Described(name, TEXT, -1, False)])


def _fault() -> Trouble:
    return Trouble("XX000", "something went wrong that should not have")
