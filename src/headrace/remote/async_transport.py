"""Conversations over HTTP, for programs with an event loop: as ``headrace.remote.transport``, with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from headrace.clock import Clock
from headrace.remote.address import Address
from headrace.remote.exchange import Failed, Pause, Reply, Request, Step, Steps, trouble
from headrace.remote.http_library import (
    CLOSED,
    PROBLEM_BYTES_MAX,
    Library,
    compressed,
    expect_events,
    is_plain,
    known,
    not_events,
    reply_of,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncTransport"]


class AsyncTransport:
    """In one event loop."""

    def __init__(self, address: Address, clock: Clock, client: httpx.AsyncClient | None = None) -> None:
        self._library = Library(address, clock)
        self._own = client is None
        self._client = client or self._library.httpx.AsyncClient(**self._library.own())

    async def run(self, steps: Steps) -> Any:
        answer: Reply | Failed | None = None
        try:
            while True:
                answer = await self._do(steps.send(answer))
        except StopIteration as done:
            return done.value

    async def _do(self, step: Step) -> Reply | Failed | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        library, body, began = self._library, bytearray(), self._library.clock.steady()
        answer: httpx.Response | Failed | None = None
        try:
            async with asyncio.timeout(step.within_s):
                answer = await self._send(step)
                if isinstance(answer, Failed):
                    return answer
                async for part in answer.aiter_raw():
                    body += part
                    if failed := library.too_much(len(body), began, step.within_s):
                        return failed
        except (library.httpx.HTTPError, library.httpx.StreamError) as error:
            return library.failed(error)
        except TimeoutError:
            return Failed(f"it is not whole after {step.within_s:.0f} s")
        finally:
            if answer is not None and not isinstance(answer, Failed):
                await answer.aclose()
        return reply_of(answer, bytes(body))

    async def _send(self, request: Request) -> httpx.Response | Failed:
        library = self._library
        if library.closed or self._client.is_closed:
            return CLOSED
        try:
            answer = await self._client.send(
                self._client.build_request(**library.request(request)), **library.sending()
            )
        except library.httpx.HTTPError as error:
            return library.failed(error)
        except RuntimeError:
            if not self._client.is_closed:
                raise
            return CLOSED
        if is_plain(answer):
            return answer
        await answer.aclose()
        return compressed(answer)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        answer = await self._send(request)
        if isinstance(answer, Failed):
            raise known(trouble(request, answer))
        try:
            async with aclosing(self._parts(request, answer)) as parts:
                if answer.status_code != 200:
                    raise not_events(request, reply_of(answer, await _some_async(parts)))
                expect_events(answer)
                yield parts
        finally:
            await answer.aclose()

    async def _parts(self, request: Request, answer: httpx.Response) -> AsyncGenerator[bytes, None]:
        httpx, failed = self._library.httpx, None
        try:
            async for part in answer.aiter_raw():
                yield part
        except (httpx.HTTPError, httpx.StreamError) as error:
            failed = self._library.failed(error)
        if failed is not None:
            raise known(trouble(request, failed))

    async def close(self) -> None:
        self._library.closed = True
        if self._own:
            await self._client.aclose()


async def _some_async(parts: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for part in parts:
        body += part
        if len(body) > PROBLEM_BYTES_MAX:
            break
    return body
