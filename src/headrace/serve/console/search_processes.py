"""Starts a process for each search with an expression, and limits how many run at the same time.

The server forwards the JSON lines of the process to the client unchanged. It kills the process when the client
disconnects. It also kills a process that sends nothing for too long, because the expression takes too long for one
record.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncGenerator
from importlib.util import find_spec
from typing import Any

import msgspec

from headrace.client.cluster import Cluster
from headrace.serve.console.search import SearchJob
from headrace.serve.console.search_worker import WorkerInput
from headrace.serve.errors import InvalidExpression, SearchEnded, ServeError, TooBusy, Unavailable
from headrace.serve.http.limits import TokenQuota
from headrace.serve.http.problem import problem_of
from headrace.serve.http.route import Receive

__all__ = ["SearchProcesses"]

_PROCESSES_MAX = 4
_MEMORY_BYTES = 512 << 20
_START_S = 30.0
_SILENT_S = 10.0
_READ_S = 10.0
_EXIT_S = 5.0
_CHUNK_BYTES = 256 * 1024
_LINE_BYTES_MAX = 64 * 1024
_LAST_LINE = re.compile(rb'\n\{"(?:end|problem)":')
_LAST_LINE_CHARS = 12


class SearchProcesses:
    """Use it in one event loop."""

    def __init__(self, cluster: Cluster, share_percent: int) -> None:
        self._cluster = cluster
        self._running: dict[asyncio.subprocess.Process, str] = {}
        """The token id of each process."""
        self._unread: set[asyncio.subprocess.Process] = set()
        """Processes whose output no response reads yet."""
        self._ending: set[asyncio.Task[None]] = set()
        """Tasks that end a process. They can outlive the request that started them."""
        self._quota = TokenQuota("searches", _PROCESSES_MAX, share_percent)

    async def start(self, job: SearchJob, token_id: str) -> asyncio.subprocess.Process:
        """Start a process, and wait until it has accepted the expression."""
        if find_spec("cel") is None:
            raise Unavailable(
                "searching with an expression needs common-expression-language, which is not installed",
                hint="install it: pip install 'headrace[serve]'",
            )
        self._quota.expect_share(token_id)
        if self._quota.is_full:
            raise TooBusy(f"too many searches (limit {_PROCESSES_MAX})", hint="retry in a moment")
        self._quota.take(token_id)
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.serve.console.search_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # The process gets its own session, so that Ctrl-C reaches only the server.
                start_new_session=True,
                limit=_LINE_BYTES_MAX,
            )
            self._running[process] = token_id
            task = WorkerInput(self._cluster.bootstrap, dict(self._cluster.properties), _MEMORY_BYTES, job)
            first = await self._first_line(process, msgspec.json.encode(task) + b"\n")
            if "problem" in first:
                raise _error(first["problem"])
        except BaseException:
            if process is None:
                self._quota.give_back(token_id)
            else:
                await asyncio.shield(self._end(process))
            raise
        # If the client disconnects before its response starts, ``_expire`` ends the process.
        self._unread.add(process)
        asyncio.get_running_loop().call_later(_READ_S, self._expire, process)
        return process

    def _expire(self, process: asyncio.subprocess.Process) -> None:
        if process in self._unread:
            self._unread.discard(process)
            self._end_soon(process)

    async def _first_line(self, process: asyncio.subprocess.Process, job: bytes) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                process.stdin.write(job)
                await process.stdin.drain()
                line = await process.stdout.readline()
                first: dict[str, Any] = msgspec.json.decode(line)
                return first
        except TimeoutError:
            raise SearchEnded(f"the search did not start within {_START_S:g} s", hint="retry") from None
        except (ConnectionError, ValueError):
            raise InvalidExpression(
                "the process crashed while it parsed the expression: the expression is nested too deeply or needs too"
                " much memory",
                hint="shorten the expression",
            ) from None

    async def lines(
        self, process: asyncio.subprocess.Process, receive: Receive, request_id: str
    ) -> AsyncGenerator[bytes]:
        assert process.stdout is not None
        self._unread.discard(process)
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        tail, has_last_line = b"\n", False
        try:
            while True:
                reading = asyncio.create_task(process.stdout.read(_CHUNK_BYTES))
                await asyncio.wait(
                    {reading, disconnect}, timeout=_SILENT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if disconnect.done() or not reading.done():
                    reading.cancel()
                    if not disconnect.done():
                        yield _problem(_no_response_error(), request_id)
                    return
                chunk = reading.result()
                if not chunk:
                    if not has_last_line:
                        yield b"\n" * (not tail.endswith(b"\n")) + _problem(_crash_error(), request_id)
                    return
                # Recognize the last line by its start, which can be split between two chunks.
                has_last_line = has_last_line or _LAST_LINE.search(tail + chunk) is not None
                tail = (tail + chunk)[-_LAST_LINE_CHARS:]
                yield chunk
        finally:
            disconnect.cancel()
            await asyncio.shield(self._end(process))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process in self._running:
            await asyncio.shield(self._end_soon(process))

    def _end_soon(self, process: asyncio.subprocess.Process) -> asyncio.Task[None]:
        if process in self._running:
            self._quota.give_back(self._running.pop(process))
        self._unread.discard(process)
        ending = asyncio.create_task(_end_process(process))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def close(self) -> None:
        for process in [*self._running]:
            self._end_soon(process)
        if self._ending:
            await asyncio.wait(self._ending)
        # Yield once to the event loop, which then releases the closed pipes.
        await asyncio.sleep(0)


async def _end_process(process: asyncio.subprocess.Process) -> None:
    try:
        if process.stdout is not None and process.stdout.at_eof():
            # The process is exiting by itself. A signal at this moment could race with the exit, and the exit
            # status would be lost.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_S):
                    await process.wait()
                return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    finally:
        # asyncio keeps the pipe open while unread output remains.
        process._transport.close()  # type: ignore[attr-defined]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(problem: dict[str, Any]) -> ServeError:
    location: dict[str, Any] = {name: problem[name] for name in ("line", "column") if name in problem}
    kind = InvalidExpression if problem.get("status") == 400 else SearchEnded
    return kind(str(problem.get("detail")), hint=str(problem.get("next", "")), members=location)


def _no_response_error() -> SearchEnded:
    return SearchEnded(
        f"the search sent nothing for {_SILENT_S:g} s: the expression takes too long for one record",
        hint="shorten the expression, and avoid nested lists",
    )


def _crash_error() -> SearchEnded:
    return SearchEnded(
        "the search process crashed: the expression may have needed too much memory",
        hint="shorten the expression, or search a smaller range",
    )


def _problem(error: ServeError, request_id: str) -> bytes:
    return b'{"problem":' + problem_of(error, request_id).body + b"}\n"
