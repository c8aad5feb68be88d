"""The processes that search: a few at a time, each for one search, ended when whoever asked is gone.

Lines of JSON go from the process to the caller as they are. A process that says nothing for a while is at a record for
which the expression takes too long, and is ended too.
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
from headrace.serve.console.errors import SearchEnded, WhereUnfit
from headrace.serve.console.search import Ask
from headrace.serve.console.search_worker import Job
from headrace.serve.errors import NotServing, ServeError, TooBusy
from headrace.serve.problem import problem_of
from headrace.serve.route import Receive
from headrace.serve.shares import Shares

__all__ = ["Searches"]

_AT_ONCE_MAX = 4
_MEMORY_BYTES = 512 << 20
_START_S = 30.0
_SILENT_S = 10.0
_HEARD_S = 10.0
_LEAVES_S = 5.0
_CHUNK_BYTES = 256 * 1024
_LINE_BYTES_MAX = 64 * 1024
_LAST = re.compile(rb'\n\{"(?:end|problem)":')
_LAST_CHARS = 12


class Searches:
    """In one event loop."""

    def __init__(self, cluster: Cluster, share_percent: int) -> None:
        self._cluster = cluster
        self._running: dict[asyncio.subprocess.Process, str] = {}
        """With the id of the token that each is for."""
        self._unheard: set[asyncio.subprocess.Process] = set()
        """Whose lines nobody reads yet."""
        self._ending: set[asyncio.Task[None]] = set()
        """Of those that are being ended: whoever began that may be gone before it is done."""
        self._begun = Shares("searches", _AT_ONCE_MAX, share_percent)

    async def begin(self, ask: Ask, token_id: str) -> asyncio.subprocess.Process:
        """Once the expression is known to be one."""
        if find_spec("cel") is None:
            raise NotServing(
                "common-expression-language is not installed, and searching with an expression needs it",
                hint="pip install 'headrace[serve]'",
            )
        self._begun.expect_share(token_id)
        if self._begun.is_full:
            raise TooBusy(f"too many searches (limit {_AT_ONCE_MAX})", hint="ask again in a moment")
        self._begun.take(token_id)
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.serve.console.search_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # In an order of its own: Ctrl-C is for the server.
                start_new_session=True,
                limit=_LINE_BYTES_MAX,
            )
            self._running[process] = token_id
            job = Job(self._cluster.bootstrap, dict(self._cluster.properties), _MEMORY_BYTES, ask)
            first = await self._first(process, msgspec.json.encode(job) + b"\n")
            if "problem" in first:
                raise _told(first["problem"])
        except BaseException:
            if process is None:
                self._begun.give_back(token_id)
            else:
                await asyncio.shield(self._end(process))
            raise
        # Whoever asked may be gone before the answer begins, and then nobody else ends it.
        self._unheard.add(process)
        asyncio.get_running_loop().call_later(_HEARD_S, self._forget, process)
        return process

    def _forget(self, process: asyncio.subprocess.Process) -> None:
        if process in self._unheard:
            self._unheard.discard(process)
            self._end_soon(process)

    async def _first(self, process: asyncio.subprocess.Process, job: bytes) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                process.stdin.write(job)
                await process.stdin.drain()
                line = await process.stdout.readline()
                found: dict[str, Any] = msgspec.json.decode(line)
                return found
        except TimeoutError:
            raise SearchEnded(f"the search has not begun within {_START_S:g} s", hint="ask again") from None
        except (ConnectionError, ValueError):
            raise WhereUnfit(
                "the process that read the expression ended: it is nested too deeply, or needs too much memory",
                hint="write it shorter",
            ) from None

    async def lines(
        self, process: asyncio.subprocess.Process, receive: Receive, request_id: str
    ) -> AsyncGenerator[bytes]:
        assert process.stdout is not None
        self._unheard.discard(process)
        gone = asyncio.create_task(_until_gone(receive))
        tail, whole = b"\n", False
        try:
            while True:
                reading = asyncio.create_task(process.stdout.read(_CHUNK_BYTES))
                await asyncio.wait({reading, gone}, timeout=_SILENT_S, return_when=asyncio.FIRST_COMPLETED)
                if gone.done() or not reading.done():
                    reading.cancel()
                    if not gone.done():
                        yield _problem(_silent(), request_id)
                    return
                chunk = reading.result()
                if not chunk:
                    if not whole:
                        yield b"\n" * (not tail.endswith(b"\n")) + _problem(_ended(), request_id)
                    return
                # The last line is known by how it begins, which may come in two pieces.
                whole = whole or _LAST.search(tail + chunk) is not None
                tail = (tail + chunk)[-_LAST_CHARS:]
                yield chunk
        finally:
            gone.cancel()
            await asyncio.shield(self._end(process))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process in self._running:
            await asyncio.shield(self._end_soon(process))

    def _end_soon(self, process: asyncio.subprocess.Process) -> asyncio.Task[None]:
        if process in self._running:
            self._begun.give_back(self._running.pop(process))
        self._unheard.discard(process)
        ending = asyncio.create_task(_ended_process(process))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def close(self) -> None:
        for process in [*self._running]:
            self._end_soon(process)
        if self._ending:
            await asyncio.wait(self._ending)
        # Pipes that were closed are let go of by the loop.
        await asyncio.sleep(0)


async def _ended_process(process: asyncio.subprocess.Process) -> None:
    try:
        if process.stdout is not None and process.stdout.at_eof():
            # It ends by itself: a signal to what is just gone would take its end from who waits for it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVES_S):
                    await process.wait()
                return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    finally:
        # Where more was written than was read, its pipe would stay open: the end behind it is never seen.
        process._transport.close()  # type: ignore[attr-defined]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _told(problem: dict[str, Any]) -> ServeError:
    place: dict[str, Any] = {name: problem[name] for name in ("line", "column") if name in problem}
    kind = WhereUnfit if problem.get("status") == 400 else SearchEnded
    return kind(str(problem.get("detail")), hint=str(problem.get("next", "")), members=place)


def _silent() -> SearchEnded:
    return SearchEnded(
        f"nothing was heard of the search for {_SILENT_S:g} s: the expression takes too long for a record",
        hint="write it shorter, without lists within lists",
    )


def _ended() -> SearchEnded:
    return SearchEnded(
        "the process that searched ended: the expression may have needed too much memory",
        hint="write it shorter, or search less at a time",
    )


def _problem(error: ServeError, request_id: str) -> bytes:
    return b'{"problem":' + problem_of(error, request_id).body + b"}\n"
