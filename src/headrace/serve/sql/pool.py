"""The processes that answer statements: a few, each for one at a time, ended when a statement takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import msgspec

from headrace.broker.exposition import Exposition
from headrace.model.extras import needing
from headrace.serve.errors import TooBusy
from headrace.serve.shares import Shares
from headrace.serve.sql.errors import SqlEnded, SqlFailed, SqlTooLong
from headrace.serve.sql.messages import (
    LENGTH_BYTES,
    Answered,
    Failed,
    Parsed,
    Reply,
    ToAnswer,
    ToParse,
    framed,
    length_of,
    read_reply,
)
from headrace.serve.sql.slots import FairSlots

__all__ = ["SqlPool"]

_START_S = 60.0
_GRACE_S = 1.0
"""Whoever answers keeps to the time too, and then need not be ended."""
_PARSE_S = 10.0
_REPLY_ROOM = 1 << 20
_FOLLOWERS_MAX = 20


class SqlPool:
    """In one event loop. ``bytes_max`` is what an answer may have, ``share_percent`` what one token has of it all."""

    def __init__(self, processes: int, queue_max: int, bytes_max: int, share_percent: int) -> None:
        self._most = processes
        self._bytes_max = bytes_max
        self._idle: list[asyncio.subprocess.Process] = []
        self._all: set[asyncio.subprocess.Process] = set()
        self._slots = FairSlots(processes, queue_max, share_percent)
        self.followers = Shares("followed statements", _FOLLOWERS_MAX, share_percent)
        self.ended = 0
        """How many were ended, or ended by themselves, in the midst of a statement."""

    def page(self, out: Exposition) -> None:
        for short, kind, text, value in (
            ("processes", "gauge", "Processes that answer statements.", len(self._all)),
            ("followers", "gauge", "Who follows the result of a statement.", self.followers.count),
            ("waiting", "gauge", "Statements that wait for a process.", self._slots.waiting),
            ("ended_total", "counter", "Processes that ended in the midst of a statement.", self.ended),
        ):
            out.one(f"headrace_sql_{short}", kind, text, value)

    async def parse(self, asked: ToParse, token_id: str) -> Parsed:
        reply = await self._ask(asked, _PARSE_S, token_id)
        assert isinstance(reply, Parsed), reply
        return reply

    async def answer(self, asked: ToAnswer, token_id: str) -> Answered:
        reply = await self._ask(asked, asked.time_s, token_id)
        assert isinstance(reply, Answered), reply
        return reply

    async def _ask(self, asked: ToParse | ToAnswer, time_s: float, token_id: str) -> Reply:
        async with self._process(time_s, token_id) as process:
            try:
                async with asyncio.timeout(time_s + _GRACE_S):
                    reply = await self._told(process, asked)
            except TimeoutError:
                raise SqlTooLong(time_s) from None
        if isinstance(reply, Failed):
            raise SqlFailed(reply.code, reply.status, reply.message, detail=reply.detail, hint=reply.hint)
        return reply

    async def _told(self, process: asyncio.subprocess.Process, asked: ToParse | ToAnswer) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(framed(asked))
            await process.stdin.drain()
            length = length_of(await process.stdout.readexactly(LENGTH_BYTES))
            if length > self._bytes_max + _REPLY_ROOM:
                raise SqlEnded(f"an answer of {length} bytes is none")
            reply = read_reply(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            code = await self._end(process)
            raise SqlEnded(
                f"the process that answered the statement ended ({code}): it may have needed too much memory",
                hint="ask for less, or raise serve.sql_memory_mb",
            ) from None
        if isinstance(reply, Answered) and reply.tired:
            await self._end(process)
        return reply

    @contextlib.asynccontextmanager
    async def _process(self, time_s: float, token_id: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Whoever does not leave it in order has ended it."""
        try:
            async with asyncio.timeout(time_s):
                await self._slots.acquire(token_id)
        except TimeoutError:
            raise TooBusy(
                f"no SQL process was free within {time_s:g} s (limit {self._most})",
                hint="ask again in a moment, or raise serve.sql_processes",
            ) from None
        process = None
        try:
            process = await self._started()
            yield process
        except SqlFailed:
            raise
        except BaseException:
            if process is not None:
                self.ended += 1
                await asyncio.shield(self._end(process))
            raise
        finally:
            if process is not None and process in self._all:
                self._idle.append(process)
            self._slots.release(token_id)

    async def _started(self) -> asyncio.subprocess.Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            self._all.discard(process)
        with needing("sql", "duckdb"), needing("sql", "pyarrow"):
            import duckdb  # noqa: F401
            import pyarrow  # noqa: F401
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.serve.sql.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # In an order of its own: Ctrl-C is for the server.
            start_new_session=True,
            limit=_REPLY_ROOM,
        )
        self._all.add(process)
        try:
            async with asyncio.timeout(_START_S):
                await self._told(process, ToParse("SELECT 1"))
        except BaseException:
            await asyncio.shield(self._end(process))
            raise
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> int | None:
        self._all.discard(process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    async def close(self) -> None:
        for process in [*self._all]:
            await self._end(process)
        self._idle.clear()
