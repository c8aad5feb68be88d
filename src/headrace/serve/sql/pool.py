"""The pool of SQL worker processes. Each process runs one statement at a time. The pool kills a process whose statement
takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator

import msgspec

from headrace.broker.metrics.exposition import Exposition
from headrace.model.errors import needing
from headrace.serve.errors import SqlFailed, SqlTimedOut, SqlWorkerDied, TokenQuotaExceeded, TooBusy
from headrace.serve.http.limits import share_of
from headrace.serve.sql.messages import (
    LENGTH_BYTES,
    Failed,
    Parsed,
    ParseRequest,
    QueryRequest,
    QueryResponse,
    Reply,
    decode_length,
    decode_reply,
    encode_frame,
)

__all__ = ["FairSlots", "SqlPool"]

_START_S = 60.0
_GRACE_S = 1.0
"""The worker enforces the time limit itself. The server kills a worker that exceeds the limit by this many seconds."""
_PARSE_S = 10.0
_REPLY_OVERHEAD_BYTES = 1 << 20


class SqlPool:
    """Use it in one event loop. ``bytes_max`` limits a response.

    ``share_percent`` limits the processes and queue places that one token can use.
    """

    def __init__(self, processes: int, queue_max: int, bytes_max: int, share_percent: int) -> None:
        self._processes_max = processes
        self._bytes_max = bytes_max
        self._idle: list[asyncio.subprocess.Process] = []
        self._all: set[asyncio.subprocess.Process] = set()
        self._slots = FairSlots(processes, queue_max, share_percent)
        self.died = 0
        """Workers that were killed or died while running a statement."""

    def write_metrics(self, out: Exposition) -> None:
        for short, kind, text, value in (
            ("processes", "gauge", "SQL worker processes.", len(self._all)),
            ("waiting", "gauge", "Statements waiting for a process.", self._slots.waiting),
            ("ended_total", "counter", "Processes that died while running a statement.", self.died),
        ):
            out.single(f"headrace_sql_{short}", kind, text, value)

    async def parse(self, request: ParseRequest, token_id: str) -> Parsed:
        reply = await self._request(request, _PARSE_S, token_id)
        assert isinstance(reply, Parsed), reply
        return reply

    async def answer(self, request: QueryRequest, token_id: str) -> QueryResponse:
        reply = await self._request(request, request.time_s, token_id)
        assert isinstance(reply, QueryResponse), reply
        return reply

    async def _request(self, request: ParseRequest | QueryRequest, time_s: float, token_id: str) -> Reply:
        async with self._process(time_s, token_id) as process:
            try:
                async with asyncio.timeout(time_s + _GRACE_S):
                    reply = await self._exchange(process, request)
            except TimeoutError:
                raise SqlTimedOut(time_s) from None
        if isinstance(reply, Failed):
            raise SqlFailed(reply.code, reply.status, reply.message, detail=reply.detail, hint=reply.hint)
        return reply

    async def _exchange(
        self, process: asyncio.subprocess.Process, request: ParseRequest | QueryRequest
    ) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(encode_frame(request))
            await process.stdin.drain()
            length = decode_length(await process.stdout.readexactly(LENGTH_BYTES))
            if length > self._bytes_max + _REPLY_OVERHEAD_BYTES:
                raise SqlWorkerDied(f"the SQL process sent {length} bytes, which is more than the limit")
            reply = decode_reply(await process.stdout.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            code = await self._end(process)
            raise SqlWorkerDied(
                f"the SQL process died ({code}): the statement may have needed too much memory",
                hint="select fewer columns or rows, or raise serve.sql_memory_mb",
            ) from None
        if isinstance(reply, QueryResponse) and reply.must_restart:
            await self._end(process)
        return reply

    @contextlib.asynccontextmanager
    async def _process(self, time_s: float, token_id: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Wait for a free process. Kill it if the block fails, except with ``SqlFailed``."""
        try:
            async with asyncio.timeout(time_s):
                await self._slots.acquire(token_id)
        except TimeoutError:
            raise TooBusy(
                f"no SQL process was free within {time_s:g} s (limit {self._processes_max})",
                hint="retry in a moment, or raise serve.sql_processes",
            ) from None
        process = None
        try:
            process = await self._idle_or_new_process()
            yield process
        except SqlFailed:
            raise
        except BaseException:
            if process is not None:
                self.died += 1
                await asyncio.shield(self._end(process))
            raise
        finally:
            if process is not None and process in self._all:
                self._idle.append(process)
            self._slots.release(token_id)

    async def _idle_or_new_process(self) -> asyncio.subprocess.Process:
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
            # The process gets its own session, so that Ctrl-C reaches only the server.
            start_new_session=True,
            limit=_REPLY_OVERHEAD_BYTES,
        )
        self._all.add(process)
        try:
            async with asyncio.timeout(_START_S):
                await self._exchange(process, ParseRequest("SELECT 1"))
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


class FairSlots:
    """Slots that tokens share fairly. A caller without a token (empty id) can use all slots.

    Use it in one event loop.
    """

    def __init__(self, slots: int, queue_max: int, percent: int) -> None:
        self._slots = slots
        self._per_token = share_of(slots, percent)
        self._queue_max = queue_max
        self._queue_per_token = share_of(queue_max, percent)
        self._running: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting callers by token. The first token in the dict is served next."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    async def acquire(self, token_id: str) -> None:
        if self._may_run(token_id):
            self._running[token_id] += 1
            return
        self._expect_queue_space(token_id)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(token_id, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(token_id)
            else:
                self._leave(token_id, waiter)
            raise

    def release(self, token_id: str) -> None:
        self._running[token_id] -= 1
        if not self._running[token_id]:
            del self._running[token_id]
        while (next_token := next(filter(self._may_run, self._queues), None)) is not None:
            queue = self._queues.pop(next_token)
            waiter = queue.popleft()
            if queue:
                # Move the token behind the others.
                self._queues[next_token] = queue
            if not waiter.done():
                self._running[next_token] += 1
                waiter.set_result(None)

    def _may_run(self, token_id: str) -> bool:
        running_max = self._per_token if token_id else self._slots
        return self._running.total() < self._slots and self._running[token_id] < running_max

    def _expect_queue_space(self, token_id: str) -> None:
        if self.waiting >= self._queue_max:
            raise TooBusy(f"too many waiting statements (limit {self._queue_max})", hint="retry in a moment")
        if token_id and len(self._queues.get(token_id, ())) >= self._queue_per_token:
            raise TokenQuotaExceeded(
                f"too many waiting statements with this token (limit {self._queue_per_token})",
                hint="wait until a statement finishes, or raise serve.token_share_percent",
            )

    def _leave(self, token_id: str, waiter: asyncio.Future[None]) -> None:
        queue = self._queues.get(token_id)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[token_id]
