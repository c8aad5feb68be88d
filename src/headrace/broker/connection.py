"""One client's connection: frames in, answers out, in the order in which the requests came.

A connection's requests are handled one after the other, with one exception that speed hangs on: several
produce requests may wait for the disk together, so that one sync serves them all. Their appends still happen
in order, and so do all answers. A fetch that waits for new data is answered as soon as another request stands
behind it, because that one cannot be answered before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.broker.framing import FrameTooLarge, Framing
from headrace.broker.handlers import HANDLERS, OFFERED, api_versions, fetch, produce
from headrace.broker.handlers.fetch import Fetching
from headrace.broker.handlers.produce import Produced
from headrace.broker.request import Request
from headrace.wire import WireError, decode, decode_header, messages, versions
from headrace.wire.api import Api
from headrace.wire.frames import Header, encode_response_parts

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.server import Server

__all__ = ["Connection"]

_log = logging.getLogger("headrace.broker")
_JOINED_MAX = 16 * 1024


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("api", "correlation_id", "parts", "version")

    def __init__(self, header: Header) -> None:
        assert header.api is not None
        self.api = header.api
        self.version = header.version
        self.correlation_id = header.correlation_id
        self.parts: list[bytearray | memoryview] | None = None


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: Broker, server: Server) -> None:
        self._broker = broker
        self._server = server
        self._framing = Framing(broker.limits.frame_bytes_max)
        self._backlog: deque[bytes | bytearray] = deque()
        self._backlog_bytes = 0
        self._slots: deque[_Slot] = deque()
        self._out: list[bytearray | memoryview] = []
        self._writes_soon = False
        self._busy: asyncio.Task[None] | None = None
        self._hurry: asyncio.Event | None = None
        self._writing_paused = False
        self._reading_paused = False
        self._closed = False
        self._finishing = False
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        self.active_at = broker.clock.steady()

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else "?"
        if not self._server.admit(self):
            self._drop(f"more than {self._broker.limits.connections_max} connections are open")

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._backlog.clear()
        self._slots.clear()
        if self._busy is not None:
            self._busy.cancel()
        self._server.leave(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._framing.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = self._broker.clock.steady()
        try:
            frames = self._framing.received(nbytes)
        except FrameTooLarge as error:
            self._drop(f"{error.message}; {error.hint}")
            return
        if not frames or self._closed:
            return
        for frame in frames:
            self._backlog_bytes += len(frame)
        self._backlog.extend(frames)
        if self._hurry is not None:
            self._hurry.set()
        self._pump()

    def eof_received(self) -> bool:
        # What was asked before is still done, and a client that closed its half only may read the answers.
        self._finishing = True
        return not self.is_idle

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._pump()

    # Handling

    @property
    def is_idle(self) -> bool:
        return not (self._slots or self._backlog or self._busy or self._out)

    def _pump(self) -> None:
        """Handle what has come, as far as it may be handled now."""
        while (
            self._backlog
            and self._busy is None
            and not self._writing_paused
            and not self._closed
            and len(self._slots) < self._broker.limits.in_flight_max
        ):
            frame = self._backlog.popleft()
            self._backlog_bytes -= len(frame)
            try:
                self._handle(frame)
            except WireError as error:
                self._drop(error.message)
        self._throttle()

    def _throttle(self) -> None:
        """Stop reading from a client that is far ahead of what can be done for it."""
        if self._closed or self._finishing or self._transport is None:
            return
        crowded = bool(self._backlog) and (
            self._backlog_bytes > self._broker.limits.backlog_bytes_max
            or len(self._backlog) >= self._broker.limits.in_flight_max
        )
        if crowded and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        elif self._reading_paused and not crowded:
            self._reading_paused = False
            self._transport.resume_reading()

    def _handle(self, frame: bytes | bytearray) -> None:
        header = decode_header(frame)
        api = header.api
        if api is None or api not in OFFERED:
            raise WireError(f"there is no API {header.api_key} here")
        lowest, highest = versions(api)
        if not lowest <= header.version <= highest:
            if api is Api.API_VERSIONS:
                self._answer_unknown_api_versions(header)
                return
            raise WireError(f"{api.name} is spoken in versions {lowest} to {highest}, not {header.version}")
        message = decode(getattr(messages, f"{api.title}Request"), header.version, frame, header.body_start)
        request = Request(api, header.version, header.correlation_id, header.client_id, message, self.peer)
        slot = _Slot(header)
        if api is Api.PRODUCE:
            self._produce(slot, request)
        elif api is Api.FETCH:
            self._slots.append(slot)
            self._fetch(slot, request)
        else:
            self._slots.append(slot)
            self._busy = self._broker.loop.create_task(self._run(slot, request))
            self._busy.add_done_callback(self._after_task)

    def _answer_unknown_api_versions(self, header: Header) -> None:
        slot = _Slot(header)
        slot.version = 0
        self._slots.append(slot)
        self._fill(slot, api_versions.unsupported_version())

    def _produce(self, slot: _Slot, request: Request) -> None:
        produced = produce.begin(self._broker, request)
        answered = request.message.acks != 0
        if answered:
            self._slots.append(slot)
        if not produced.waits:
            self._end_produce(slot if answered else None, produced)
            return
        left = len(produced.waits)

        def one_is_done(_: asyncio.Future[None]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._end_produce(slot if answered else None, produced)
                self._pump()

        for wait in produced.waits:
            wait.add_done_callback(one_is_done)

    def _end_produce(self, slot: _Slot | None, produced: Produced) -> None:
        response = produced.finish()
        if slot is not None:
            self._fill(slot, response)
        elif produced.failed:
            self._drop("a batch sent without asking for an answer was refused")

    def _fetch(self, slot: _Slot, request: Request) -> None:
        fetching = fetch.begin(self._broker, request)
        response = fetching.attempt(last=False)
        if response is not None:
            self._fill(slot, response)
            return
        self._busy = self._broker.loop.create_task(self._wait_for_data(slot, fetching))
        self._busy.add_done_callback(self._after_task)

    async def _wait_for_data(self, slot: _Slot, fetching: Fetching) -> None:
        loop = self._broker.loop
        deadline = loop.time() + fetching.max_wait_s
        self._hurry = asyncio.Event()
        partitions = fetching.partitions()
        for partition in partitions:
            partition.watchers.add(self._hurry.set)
        try:
            while True:
                while fetching.is_cold:
                    await fetching.warm()
                    response = fetching.attempt(last=False)
                    if response is not None:
                        self._fill(slot, response)
                        return
                left = deadline - loop.time()
                if left > 0 and not self._backlog and not self._finishing:
                    self._hurry.clear()
                    try:
                        async with asyncio.timeout(left):
                            await self._hurry.wait()
                    except TimeoutError:
                        left = 0
                last = left <= 0 or bool(self._backlog) or self._finishing
                response = fetching.attempt(last=last)
                if response is not None:
                    self._fill(slot, response)
                    return
        finally:
            for partition in partitions:
                partition.watchers.discard(self._hurry.set)
            self._hurry = None

    async def _run(self, slot: _Slot, request: Request) -> None:
        self._fill(slot, await HANDLERS[request.api](self._broker, request))

    def _after_task(self, task: asyncio.Task[None]) -> None:
        self._busy = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("a request from %s failed inside the broker", self.peer, exc_info=error)
            self._drop("a request failed inside the broker")
            return
        self._pump()
        self._close_when_done()

    # Answering

    def _fill(self, slot: _Slot, response: Any) -> None:
        slot.parts = encode_response_parts(slot.api, slot.version, slot.correlation_id, response)
        while self._slots and (parts := self._slots[0].parts) is not None:
            self._slots.popleft()
            self._out += parts
        # Not at once: one sync often answers several requests of a connection, and they leave in one write.
        if self._out and not self._writes_soon:
            self._writes_soon = True
            self._broker.loop.call_soon(self._write)
        self._close_when_done()

    def _write(self) -> None:
        self._writes_soon = False
        parts, self._out = self._out, []
        if self._closed or self._transport is None:
            return
        if len(parts) > 1 and sum(map(len, parts)) <= _JOINED_MAX:
            parts = [bytearray().join(parts)]
        for part in parts:
            self._transport.write(part)
        self._close_when_done()

    def _drop(self, reason: str) -> None:
        """Close the connection, saying why once."""
        if self._closed or self._transport is None:
            return
        self._closed = True
        _log.warning("connection from %s closed: %s", self.peer, reason)
        self._transport.close()

    def close(self) -> None:
        if self._transport is not None and not self._closed:
            self._closed = True
            self._transport.close()

    def finish(self) -> None:
        """The broker stops: answer what is under way, take nothing more, and close."""
        if self._transport is None:
            return
        self._backlog.clear()
        self._transport.pause_reading()
        self._reading_paused = self._finishing = True
        if self._hurry is not None:
            self._hurry.set()
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._finishing and not self._slots and not self._out and self._busy is None:
            self.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._closed = True
            self._transport.abort()
