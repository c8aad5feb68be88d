"""One client's connection: frames in, answers out, in the order in which the requests came.

A connection's requests are handled one after the other, with one exception that speed hangs on: several
produce requests may wait for the disk together, so that one sync serves them all. Their appends still happen
in order, and so do all answers. A fetch that waits for new data is answered as soon as another request stands
behind it, because that one cannot be answered before.

A client costs a bounded amount of memory whatever it does: of requests sent ahead, a few are taken from the
socket; with answers untaken, no more are made; and whoever is slower than the limits allow, at sending or at
taking, is closed. What all of them hold together is in the broker's two accounts (see ``pressure``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.asking import read_request
from headrace.broker.framing import FrameTooLarge, Framing
from headrace.broker.handlers import HANDLERS, api_versions, fetch, produce
from headrace.broker.handlers.fetch import Fetching
from headrace.broker.handlers.produce import Produced
from headrace.broker.keep_alive import keep_alive, leave_nothing
from headrace.broker.patience import Patience
from headrace.broker.request import Request
from headrace.broker.slot import Slot
from headrace.broker.waiting_fetches import WaitingFetch
from headrace.broker.walks import Walk, batches_of, forget, walk_all, walks_wanted
from headrace.wire import WireError
from headrace.wire.api import Api
from headrace.wire.frames import encode_response_parts

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.server import Server

__all__ = ["Connection"]

_log = logging.getLogger("headrace.broker")
_JOINED_MAX = 16 * 1024
_COUNTED_FROM = 64 * 1024
_CLOSING_S_MAX = 5.0


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: Broker, server: Server) -> None:
        self._broker = broker
        self._server = server
        limits = broker.limits
        self._framing = Framing(limits.produce_frame_bytes_max, limits.frame_bytes_max)
        self._sending = Patience()
        self._backlog: deque[bytes | bytearray] = deque()
        self._backlog_bytes = 0
        self._slots: deque[Slot] = deque()
        self._out: list[bytearray | memoryview] = []
        self._out_bytes = 0
        self._written = 0
        self._taking = Patience()
        self._walked_bytes = 0
        self._writes_soon = False
        self._busy: asyncio.Task[None] | None = None
        self._waiting: WaitingFetch | None = None
        self._writing_paused = False
        self._reading_paused = False
        self._closed = False
        self._finishing = False
        self._closing_since = 0.0
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        self.active_at = broker.clock.steady()

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else "?"
        keep_alive(transport.get_extra_info("socket"))
        if (refusal := self._server.admit(self)) is not None:
            self._drop("too-many-connections", refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._backlog.clear()
        self._slots.clear()
        self._backlog_bytes = 0
        if self._busy is not None:
            self._busy.cancel()
        self._broker.requests_held.hold(self, 0)
        self._broker.answers_held.hold(self, 0)
        self._broker.groups.forget_connection(self)
        self._server.leave(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._framing.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at = now = self._broker.clock.steady()
        framing = self._framing
        try:
            frames = framing.received(nbytes)
        except FrameTooLarge as error:
            self._drop("oversized-frame", f"{error.message}; {error.hint}", announced=error.size)
            return
        if not framing.is_inside_frame:
            self._sending.end()
        elif frames or self._sending.since is None:
            self._sending.begin(now)
        if frames and not self._closed:
            for frame in frames:
                self._backlog_bytes += len(frame)
            self._backlog.extend(frames)
            if self._waiting is not None:
                self._waiting.hurry()
            self._pump()
        if framing.large_bytes or self._backlog_bytes:
            self._note_held()

    def eof_received(self) -> bool:
        # What was asked before is still done, and a client that closed its half only may read the answers.
        self._finishing = True
        if self._waiting is not None:
            self._waiting.hurry()
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
        limits = self._broker.limits
        while (
            self._backlog
            and self._busy is None
            and not self._writing_paused
            and not self._closed
            and len(self._slots) < limits.in_flight_max
            and self._out_bytes <= limits.unsent_bytes_max
        ):
            frame = self._backlog.popleft()
            self._backlog_bytes -= len(frame)
            try:
                self._handle(frame)
            except WireError as error:
                self._drop("malformed-request", error.message, frame_bytes=len(frame))
            except Exception as error:
                self._fail(error)
        self._throttle()

    def _note_held(self) -> None:
        """Tell the account of requests what this connection holds beside what every one has."""
        if not self._closed:
            held = self._framing.large_bytes + self._backlog_bytes + self._walked_bytes
            self._broker.requests_held.hold(self, held)

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
            if self._sending.since is not None:
                # The wait was ours.
                self._sending.begin(self._broker.clock.steady(), self._framing.bytes_received)
            self._transport.resume_reading()
        self._note_held()

    def _handle(self, frame: bytes | bytearray) -> None:
        header, request = read_request(frame, self.peer, self._broker.limits, self)
        slot = Slot(header, self.active_at)
        if request is None:
            slot.version = 0
            self._slots.append(slot)
            self._fill(slot, api_versions.unsupported_version())
        elif request.api is Api.PRODUCE:
            self._produce(slot, request, len(frame))
        elif request.api is Api.FETCH:
            self._slots.append(slot)
            self._fetch(slot, request)
        else:
            self._slots.append(slot)
            self._busy = self._broker.loop.create_task(self._run(slot, request))
            self._busy.add_done_callback(self._after_task)

    def _produce(self, slot: Slot, request: Request, frame_bytes: int) -> None:
        answered = request.message.acks != 0
        if answered:
            self._slots.append(slot)
        batches = batches_of(request.message)
        walks = walks_wanted(self._broker, request, frame_bytes, batches)
        if walks is None and len(batches) <= produce.APPENDED_AT_ONCE:
            self._append(slot if answered else None, request, batches)
            return
        self._walked_bytes = frame_bytes
        walking = self._walk_and_append(slot if answered else None, request, batches, walks or ())
        self._busy = self._broker.loop.create_task(walking)
        self._busy.add_done_callback(self._after_task)

    async def _walk_and_append(
        self, slot: Slot | None, request: Request, batches: Sequence[Any], walks: Sequence[Walk]
    ) -> None:
        """As ``_append``, with the walks over its batches made in a thread first, and in turns with other requests."""
        broker = self._broker
        try:
            if walks:
                await broker.loop.run_in_executor(broker.walker, walk_all, walks, broker.limits.records)
        except asyncio.CancelledError:
            # The thread may still be at it, and what it leaves must go.
            broker.walker.submit(forget, batches)
            raise
        finally:
            self._walked_bytes = 0
        try:
            produced = await produce.begin_in_turns(broker, request)
        finally:
            forget(batches)
        self._await_durable(slot, request, produced)

    def _append(self, slot: Slot | None, request: Request, batches: Sequence[Any]) -> None:
        try:
            produced = produce.begin(self._broker, request)
        finally:
            forget(batches)
        self._await_durable(slot, request, produced)

    def _await_durable(self, slot: Slot | None, request: Request, produced: Produced) -> None:
        self._broker.stats.produced(request.message, produced.response)
        if not produced.waits:
            self._end_produce(slot, produced)
            return
        left = len(produced.waits)

        def one_is_done(_: asyncio.Future[None]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._end_produce(slot, produced)
                self._pump()

        for wait in produced.waits:
            wait.add_done_callback(one_is_done)

    def _end_produce(self, slot: Slot | None, produced: Produced) -> None:
        response = produced.finish()
        if slot is not None:
            self._fill(slot, response)
        elif produced.failed:
            self._drop("refused-unanswered", "a batch sent without asking for an answer was refused")

    def _fetch(self, slot: Slot, request: Request) -> None:
        fetching = fetch.begin(self._broker, request)
        response = fetching.attempt(last=False)
        if response is not None:
            self._fill(slot, response)
            return
        self._busy = self._broker.loop.create_task(self._wait_for_data(slot, fetching))
        self._busy.add_done_callback(self._after_task)

    async def _wait_for_data(self, slot: Slot, fetching: Fetching) -> None:
        hurried = bool(self._backlog) or self._finishing
        self._waiting = WaitingFetch(self._broker, partial(self._encode, slot), hurried=hurried)
        try:
            parts = await self._waiting.response(fetching)
        finally:
            self._waiting = None
        self._queue(slot, parts)

    async def _run(self, slot: Slot, request: Request) -> None:
        self._fill(slot, await HANDLERS[request.api](self._broker, request))

    def _after_task(self, task: asyncio.Task[None]) -> None:
        self._busy = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(error)
            return
        self._pump()
        self._close_when_done()

    def _fail(self, error: BaseException) -> None:
        _log.error("a request from %s failed inside the broker", self.peer, exc_info=error)
        self._drop("failed-inside", "a request failed inside the broker")

    # Answering

    def _fill(self, slot: Slot, response: Any) -> None:
        self._queue(slot, self._encode(slot, response))

    def _encode(self, slot: Slot, response: Any) -> list[bytearray | memoryview]:
        stats = self._broker.stats
        stats.answered(slot.api, self._broker.clock.steady() - slot.began)
        if slot.api is Api.FETCH:
            stats.fetched(response, self._broker.topic_name)
        return encode_response_parts(slot.api, slot.version, slot.correlation_id, response)

    def _queue(self, slot: Slot, parts: list[bytearray | memoryview]) -> None:
        """Send a response when those before it are sent."""
        slot.parts = parts
        while self._slots and (ready := self._slots[0].parts) is not None:
            self._slots.popleft()
            self._out += ready
            self._out_bytes += sum(map(len, ready))
        if self._out_bytes > _COUNTED_FROM:
            # Now, so that the next answer to anybody is the smaller for it.
            self._broker.answers_held.hold(self, self._out_bytes)
        # Not at once: one sync often answers several requests of a connection, and they leave in one write.
        if self._out and not self._writes_soon:
            self._writes_soon = True
            self._broker.loop.call_soon(self._write)
        self._close_when_done()

    def _write(self) -> None:
        self._writes_soon = False
        parts, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if self._closed or self._transport is None:
            return
        if len(parts) > 1 and size <= _JOINED_MAX:
            parts = [bytearray().join(parts)]
        for part in parts:
            self._transport.write(part)
        self._written += size
        self._note_unsent()
        self._close_when_done()
        if self._backlog and size > self._broker.limits.unsent_bytes_max:
            self._pump()

    def _note_unsent(self) -> None:
        """Whether the client has taken all its answers, and since when it has not."""
        assert self._transport is not None
        size = self._transport.get_write_buffer_size()
        if not size:
            self._taking.end()
        elif self._taking.since is None:
            self._taking.begin(self._broker.clock.steady(), self._written - size)
        self._broker.answers_held.hold(self, size)

    # Closing

    def sweep(self, now: float) -> None:
        """Close the connection if the client has been idle or slow for too long."""
        limits = self._broker.limits
        if self._closed or self._transport is None:
            if now - self._closing_since > _CLOSING_S_MAX:
                self.abort()
            return
        if self._taking.since is not None:
            self._note_unsent()
            unsent = self._transport.get_write_buffer_size()
            if taken := self._taking.lost(now, self._written - unsent, limits):
                self._say("slow-reader", f"it took {taken}, and {unsent} are waiting for it", unsent=unsent)
                self.abort()
                return
        if not self._reading_paused:
            received = self._framing.bytes_received
            if sent := self._sending.lost(now, received, limits):
                self._drop("slow-sender", f"it sent {sent} of a request that is not whole", received=received)
                return
        if now - self.active_at > limits.idle_ms_max / 1000 and self.is_idle:
            self._server.idle_closed += 1
            self.close()

    def put_off(self, by_s: float) -> None:
        self.active_at += by_s
        self._sending.put_off(by_s)
        self._taking.put_off(by_s)

    def evict(self, reason: str) -> None:
        self._say("overload", reason)
        self.abort()

    def _say(self, event: str, reason: str, **values: object) -> None:
        text = f"connection from {self.peer} closed: {reason}"
        self._broker.notices.say(event, text, values | {"client": self.peer})

    def _drop(self, event: str, reason: str, **values: object) -> None:
        """Close the connection, saying why once."""
        if self._closed or self._transport is None:
            return
        self._say(event, reason, **values)
        self.close()

    def close(self) -> None:
        if self._transport is not None and not self._closed:
            self._closed = True
            self._closing_since = self._broker.clock.steady()
            self._transport.close()

    def finish(self) -> None:
        """The broker stops: answer what is under way, take nothing more, and close."""
        if self._transport is None:
            return
        self._backlog.clear()
        self._transport.pause_reading()
        self._reading_paused = self._finishing = True
        if self._waiting is not None:
            self._waiting.hurry()
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._finishing and not self._slots and not self._out and self._busy is None:
            self.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._closed = True
            self._closing_since = self._broker.clock.steady()
            leave_nothing(self._transport.get_extra_info("socket"))
            self._transport.abort()
