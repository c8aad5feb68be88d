"""Runs exchanges (``exchange.py``) over HTTP: ``Transport`` for threads, ``AsyncTransport`` for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from headrace.clock import Clock
from headrace.remote.address import Address
from headrace.remote.exchange import Failed, Pause, Reply, Request, Step, Steps, error_of_reply
from headrace.remote.http_library import (
    CLOSED,
    PROBLEM_BYTES_MAX,
    Library,
    compression_failure,
    expect_events,
    is_uncompressed,
    reply_of,
    require_error,
    status_error,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncTransport", "Stoppable", "Stream", "Transport"]


class Stoppable(Protocol):
    """An endless stream that any thread can stop."""

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stream:
    _response: httpx.Response
    parts: Iterator[bytes]

    def shut(self) -> None:
        """Wake the thread that waits for data. Closing the socket would not wake it. Thread-safe."""
        if self._response.http_version.startswith("HTTP/1"):
            connection = self._response.extensions["network_stream"].get_extra_info("socket")
            with contextlib.suppress(OSError):
                # Use the plain socket's method: that of a TLS socket would change its state during a read.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


class Transport:
    """Thread-safe. ``client`` is an optional client of the caller, with its own certificates or proxies."""

    def __init__(self, address: Address, clock: Clock, client: httpx.Client | None = None) -> None:
        self._library = Library(address, clock)
        self._owns_client = client is None
        self._client = client or self._library.httpx.Client(**self._library.client_options())
        self._streams: WeakSet[Stoppable] = WeakSet()
        self._lock = threading.Lock()

    def run(self, steps: Steps) -> Any:
        response: Reply | Failed | None = None
        try:
            while True:
                response = self._run_step(steps.send(response))
        except StopIteration as done:
            return done.value

    def _run_step(self, step: Step) -> Reply | Failed | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        library, body, started_s = self._library, bytearray(), self._library.clock.steady()
        response = self._send(step)
        if isinstance(response, Failed):
            return response
        try:
            for part in response.iter_raw():
                body += part
                if failure := library.limit_failure(len(body), started_s, step.timeout_s):
                    return failure
        except (library.httpx.HTTPError, library.httpx.StreamError) as error:
            return library.failure_of(error)
        finally:
            response.close()
        return reply_of(response, bytes(body))

    def _send(self, request: Request) -> httpx.Response | Failed:
        library = self._library
        if library.closed or self._client.is_closed:
            return CLOSED
        try:
            response = self._client.send(
                self._client.build_request(**library.request_options(request)), **library.send_options()
            )
        except library.httpx.HTTPError as error:
            return library.failure_of(error)
        except RuntimeError:
            if not self._client.is_closed:
                raise
            return CLOSED
        if is_uncompressed(response):
            return response
        response.close()
        return compression_failure(response)

    @contextmanager
    def stream(self, request: Request) -> Iterator[Stream]:
        """Open a stream of events. ``request.timeout_s`` is the longest time without data. Raises RemoteError."""
        response = self._send(request)
        if isinstance(response, Failed):
            raise require_error(error_of_reply(request, response))
        try:
            if response.status_code != 200:
                raise status_error(request, reply_of(response, _read_problem(self._parts(request, response))))
            expect_events(response)
            yield Stream(response, self._parts(request, response))
        finally:
            response.close()

    def _parts(self, request: Request, response: httpx.Response) -> Iterator[bytes]:
        httpx, failure = self._library.httpx, None
        try:
            yield from response.iter_raw()
        except (httpx.HTTPError, httpx.StreamError) as error:
            failure = self._library.failure_of(error)
        if failure is not None:
            raise require_error(error_of_reply(request, failure))

    def stop_on_close(self, stoppable: Stoppable) -> None:
        """Stop the stream when the transport is closed."""
        with self._lock:
            self._streams.add(stoppable)

    def close(self) -> None:
        self._library.closed = True
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.stop()
        if self._owns_client:
            self._client.close()


def _read_problem(parts: Iterator[bytes]) -> bytes:
    body = b""
    for part in parts:
        body += part
        if len(body) > PROBLEM_BYTES_MAX:
            break
    return body


class AsyncTransport:
    """Use it in one event loop."""

    def __init__(self, address: Address, clock: Clock, client: httpx.AsyncClient | None = None) -> None:
        self._library = Library(address, clock)
        self._owns_client = client is None
        self._client = client or self._library.httpx.AsyncClient(**self._library.client_options())

    async def run(self, steps: Steps) -> Any:
        response: Reply | Failed | None = None
        try:
            while True:
                response = await self._run_step(steps.send(response))
        except StopIteration as done:
            return done.value

    async def _run_step(self, step: Step) -> Reply | Failed | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        library, body, started_s = self._library, bytearray(), self._library.clock.steady()
        response: httpx.Response | Failed | None = None
        try:
            async with asyncio.timeout(step.timeout_s):
                response = await self._send(step)
                if isinstance(response, Failed):
                    return response
                async for part in response.aiter_raw():
                    body += part
                    if failure := library.limit_failure(len(body), started_s, step.timeout_s):
                        return failure
        except (library.httpx.HTTPError, library.httpx.StreamError) as error:
            return library.failure_of(error)
        except TimeoutError:
            return Failed(f"the response was incomplete after {step.timeout_s:.0f} s")
        finally:
            if response is not None and not isinstance(response, Failed):
                await response.aclose()
        return reply_of(response, bytes(body))

    async def _send(self, request: Request) -> httpx.Response | Failed:
        library = self._library
        if library.closed or self._client.is_closed:
            return CLOSED
        try:
            response = await self._client.send(
                self._client.build_request(**library.request_options(request)), **library.send_options()
            )
        except library.httpx.HTTPError as error:
            return library.failure_of(error)
        except RuntimeError:
            if not self._client.is_closed:
                raise
            return CLOSED
        if is_uncompressed(response):
            return response
        await response.aclose()
        return compression_failure(response)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        response = await self._send(request)
        if isinstance(response, Failed):
            raise require_error(error_of_reply(request, response))
        try:
            async with aclosing(self._parts(request, response)) as parts:
                if response.status_code != 200:
                    raise status_error(request, reply_of(response, await _read_problem_async(parts)))
                expect_events(response)
                yield parts
        finally:
            await response.aclose()

    async def _parts(self, request: Request, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        httpx, failure = self._library.httpx, None
        try:
            async for part in response.aiter_raw():
                yield part
        except (httpx.HTTPError, httpx.StreamError) as error:
            failure = self._library.failure_of(error)
        if failure is not None:
            raise require_error(error_of_reply(request, failure))

    async def close(self) -> None:
        self._library.closed = True
        if self._owns_client:
            await self._client.aclose()


async def _read_problem_async(parts: AsyncIterator[bytes]) -> bytes:
    body = b""
    async for part in parts:
        body += part
        if len(body) > PROBLEM_BYTES_MAX:
            break
    return body
