"""Conversations over HTTP, for callers that block."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

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

__all__ = ["Stoppable", "Stream", "Transport"]


class Stoppable(Protocol):
    """What goes on for ever, until it is told to stop; by any thread."""

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stream:
    _answer: httpx.Response
    parts: Iterator[bytes]

    def shut(self) -> None:
        """Wakes whoever waits for the next part; from any thread. To close the socket would not."""
        if self._answer.http_version.startswith("HTTP/1"):
            found = self._answer.extensions["network_stream"].get_extra_info("socket")
            with contextlib.suppress(OSError):
                # That of a socket of TLS would take its state from under whoever reads.
                socket.socket.shutdown(found, socket.SHUT_RDWR)


class Transport:
    """For any thread. ``client`` is one of the caller's, with its own certificates or proxies."""

    def __init__(self, address: Address, clock: Clock, client: httpx.Client | None = None) -> None:
        self._library = Library(address, clock)
        self._own = client is None
        self._client = client or self._library.httpx.Client(**self._library.own())
        self._going_on: WeakSet[Stoppable] = WeakSet()
        self._lock = threading.Lock()

    def run(self, steps: Steps) -> Any:
        answer: Reply | Failed | None = None
        try:
            while True:
                answer = self._do(steps.send(answer))
        except StopIteration as done:
            return done.value

    def _do(self, step: Step) -> Reply | Failed | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        library, body, began = self._library, bytearray(), self._library.clock.steady()
        answer = self._send(step)
        if isinstance(answer, Failed):
            return answer
        try:
            for part in answer.iter_raw():
                body += part
                if failed := library.too_much(len(body), began, step.within_s):
                    return failed
        except (library.httpx.HTTPError, library.httpx.StreamError) as error:
            return library.failed(error)
        finally:
            answer.close()
        return reply_of(answer, bytes(body))

    def _send(self, request: Request) -> httpx.Response | Failed:
        library = self._library
        if library.closed or self._client.is_closed:
            return CLOSED
        try:
            answer = self._client.send(
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
        answer.close()
        return compressed(answer)

    @contextmanager
    def stream(self, request: Request) -> Iterator[Stream]:
        """Events as they come; ``request.within_s`` is how long there may be none. Raises RemoteError."""
        answer = self._send(request)
        if isinstance(answer, Failed):
            raise known(trouble(request, answer))
        try:
            if answer.status_code != 200:
                raise not_events(request, reply_of(answer, _some(self._parts(request, answer))))
            expect_events(answer)
            yield Stream(answer, self._parts(request, answer))
        finally:
            answer.close()

    def _parts(self, request: Request, answer: httpx.Response) -> Iterator[bytes]:
        httpx, failed = self._library.httpx, None
        try:
            yield from answer.iter_raw()
        except (httpx.HTTPError, httpx.StreamError) as error:
            failed = self._library.failed(error)
        if failed is not None:
            raise known(trouble(request, failed))

    def goes_on(self, what: Stoppable) -> None:
        """It is stopped when this is closed."""
        with self._lock:
            self._going_on.add(what)

    def close(self) -> None:
        self._library.closed = True
        with self._lock:
            going_on = list(self._going_on)
        for one in going_on:
            one.stop()
        if self._own:
            self._client.close()


def _some(parts: Iterator[bytes]) -> bytes:
    body = b""
    for part in parts:
        body += part
        if len(body) > PROBLEM_BYTES_MAX:
            break
    return body
