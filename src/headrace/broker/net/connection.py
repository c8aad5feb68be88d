"""A client's connection. It receives requests and sends the responses in the same order.

A connection handles its requests one at a time, with one exception. Several Produce requests can wait for the disk
together, so that one sync serves all of them. Their appends are still in order, and so are all responses. A fetch stops
waiting for new records when another request arrives, because the response to that request must follow the response to
the fetch.

The memory per client is limited. The broker reads only a few requests ahead from the socket, builds no more responses
while the client does not read, and closes a connection whose client is too slow. Two accounts (``client_limits``) count
the memory of all connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from headrace.broker.handlers import cluster, fetch, produce
from headrace.broker.handlers.fetch import PendingFetch
from headrace.broker.handlers.produce import AppendedRequest, Prevalidation
from headrace.broker.net.client_limits import SlowClientTimer, discard_unsent_on_close, enable_keep_alive
from headrace.broker.net.request import (
    Frame,
    FrameTooLarge,
    Framing,
    Parts,
    PendingResponse,
    Request,
    decode_body,
    decode_head,
    decode_large_body,
    join_small,
)
from headrace.broker.net.waiting_fetches import WaitingFetch
from headrace.wire import WireError
from headrace.wire.api import Api
from headrace.wire.frames import Header

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.server import Server

__all__ = ["Connection"]

_log = logging.getLogger("headrace.broker")
_JOINED_BYTES_MAX = 16 * 1024
_COUNTED_BYTES_MIN = 64 * 1024
_CLOSING_S_MAX = 5.0
# A request of this size can have a thousand items. Most requests other than Produce are much smaller.
_LARGE_BYTES = 16 * 1024


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: Broker, server: Server) -> None:
        self._broker = broker
        self._server = server
        limits = broker.limits
        self._framing = Framing(limits.produce_frame_bytes_max, limits.frame_bytes_max)
        self._request_timer = SlowClientTimer()
        self._backlog: deque[Frame] = deque()
        self._backlog_bytes = 0
        self._responses: deque[PendingResponse] = deque()
        self._outgoing: list[bytearray | memoryview] = []
        self._outgoing_bytes = 0
        self._written_bytes = 0
        self._response_timer = SlowClientTimer()
        self._held_bytes = 0
        self._request_bytes = 0
        self._unsent_bytes = 0
        self._write_scheduled = False
        self._current_task: asyncio.Task[None] | None = None
        self._waiting_fetch: WaitingFetch | None = None
        self._writing_paused = False
        self._reading_paused = False
        self._closed = False
        self._finishing = False
        self._closing_since = 0.0
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        self.active_at = broker.clock.steady()

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else "?"
        enable_keep_alive(transport.get_extra_info("socket"))
        if (refusal := self._server.admit(self)) is not None:
            self._disconnect("too-many-connections", refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._backlog.clear()
        self._responses.clear()
        self._backlog_bytes = 0
        if self._current_task is not None:
            self._current_task.cancel()
        self._broker.requests_held.set_usage(self, 0)
        self._broker.responses_held.set_usage(self, 0)
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
            self._disconnect("oversized-frame", f"{error.message}; {error.hint}", announced=error.size)
            return
        if not framing.is_inside_frame:
            if self._request_timer.since is not None:
                self._request_timer.stop()
        elif frames or self._request_timer.since is None:
            self._request_timer.start(now)
        if frames and not self._closed:
            for frame in frames:
                self._backlog_bytes += len(frame)
            self._backlog.extend(frames)
            if self._waiting_fetch is not None:
                self._waiting_fetch.respond_now()
            self._handle_backlog()
        if framing.large_bytes or self._backlog_bytes:
            self._account_requests()

    def eof_received(self) -> bool:
        # A client that closed only its sending side can still read the responses to its earlier requests.
        self._finishing = True
        if self._waiting_fetch is not None:
            self._waiting_fetch.respond_now()
        return not self.is_idle

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._handle_backlog()

    # Handling

    @property
    def is_idle(self) -> bool:
        return not (self._responses or self._backlog or self._current_task or self._outgoing)

    def _handle_backlog(self) -> None:
        """Handle received requests until a limit is reached or a request must wait."""
        limits = self._broker.limits
        while (
            self._backlog
            and self._current_task is None
            and not self._writing_paused
            and not self._closed
            and len(self._responses) < limits.in_flight_max
            and self._outgoing_bytes <= limits.unsent_bytes_max
        ):
            frame = self._backlog.popleft()
            self._backlog_bytes -= len(frame)
            try:
                self._handle(frame)
            except WireError as error:
                self._disconnect("malformed-request", error.message, frame_bytes=len(frame))
            except Exception as error:
                self._fail(error)
        self._throttle()

    def _account_requests(self) -> None:
        """Update the account with the bytes of this connection's requests, without its small fixed buffer."""
        if not self._closed:
            used_bytes = self._framing.large_bytes + self._backlog_bytes + self._held_bytes
            if used_bytes != self._request_bytes:
                self._request_bytes = used_bytes
                self._broker.requests_held.set_usage(self, used_bytes)

    def _throttle(self) -> None:
        """Stop reading from a client that sends requests faster than the broker handles them."""
        if self._closed or self._finishing or self._transport is None:
            return
        has_too_many = bool(self._backlog) and (
            self._backlog_bytes > self._broker.limits.backlog_bytes_max
            or len(self._backlog) >= self._broker.limits.in_flight_max
        )
        if has_too_many and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        elif self._reading_paused and not has_too_many:
            self._reading_paused = False
            if self._request_timer.since is not None:
                # Restart the timer, because the client had to wait for the broker.
                self._request_timer.start(self._broker.clock.steady(), self._framing.bytes_received)
            self._transport.resume_reading()
        self._account_requests()

    def _handle(self, frame: Frame) -> None:
        header, is_supported = decode_head(frame)
        pending = PendingResponse(self._broker, header, self.active_at, self)
        if not is_supported:
            pending.version = 0
            self._responses.append(pending)
            self._respond(pending, cluster.unsupported_version())
        elif header.api is Api.PRODUCE:
            self._produce(pending, decode_body(header, frame, self._broker.limits, self), len(frame))
        elif len(frame) > _LARGE_BYTES:
            self._responses.append(pending)
            self._held_bytes = len(frame)
            self._start_task(self._decode_and_handle(pending, header, frame))
        else:
            request = decode_body(header, frame, self._broker.limits, self)
            self._responses.append(pending)
            if request.api is not Api.FETCH:
                self._start_task(self._run(pending, request))
            elif (waiting := self._attempt_fetch(pending, fetch.begin(self._broker, request))) is not None:
                self._start_task(self._wait_for_data(pending, waiting))

    async def _decode_and_handle(self, pending: PendingResponse, header: Header, frame: Frame) -> None:
        """Decode a large request in a thread and handle it in steps, so that other clients do not wait for it."""
        broker = self._broker
        async with broker.turns:
            try:
                request, self._held_bytes = await broker.loop.run_in_executor(
                    broker.codec_executor, decode_large_body, header, frame, broker.limits, self
                )
            except WireError as error:
                self._disconnect("malformed-request", error.message, frame_bytes=len(frame))
                return
            del frame
            self._account_requests()
            if request.api is Api.FETCH:
                # The first attempt uses this turn too, so at most one decoded fetch has not reserved memory.
                waiting = self._attempt_fetch(pending, fetch.begin(broker, request))
                del request
                if waiting is not None:
                    await self._wait_for_data(pending, waiting)
                return
        await self._run(pending, request)

    def _produce(self, pending: PendingResponse, request: Request, frame_bytes: int) -> None:
        target = pending if request.message.acks != 0 else None
        if target is not None:
            self._responses.append(target)
        prevalidation = produce.prevalidate(self._broker, request, frame_bytes)
        if not prevalidation.needs_thread and len(prevalidation.results) <= produce.BATCHES_PER_STEP:
            self._await_durable(target, request, produce.begin(self._broker, request, prevalidation.results))
            return
        self._held_bytes = frame_bytes
        self._start_task(self._validate_and_append(target, request, prevalidation))

    async def _validate_and_append(
        self, pending: PendingResponse | None, request: Request, prevalidation: Prevalidation
    ) -> None:
        self._await_durable(
            pending, request, await produce.begin_in_steps(self._broker, request, prevalidation)
        )

    def _await_durable(
        self, pending: PendingResponse | None, request: Request, appended: AppendedRequest
    ) -> None:
        self._broker.stats.produced(request.message, appended.response)
        if not appended.durable_futures:
            self._end_produce(pending, appended)
            return

        def end() -> None:
            self._end_produce(pending, appended)
            self._handle_backlog()

        appended.when_durable(end)

    def _end_produce(self, pending: PendingResponse | None, appended: AppendedRequest) -> None:
        response = appended.finish()
        if pending is not None:
            self._respond(pending, response)
        elif appended.failed:
            reason = "the broker refused a batch with acks=0, which gets no response"
            self._disconnect("refused-unanswered", reason)

    def _attempt_fetch(self, pending: PendingResponse, pending_fetch: PendingFetch) -> WaitingFetch | None:
        """Respond if the partitions have enough records. Otherwise return the fetch, which begins to wait."""
        if not pending_fetch.is_large:
            response = pending_fetch.attempt(last=False)
            if response is not None:
                self._respond(pending, response)
                return None
        must_respond = bool(self._backlog) or self._finishing
        waiting = WaitingFetch(self._broker, pending_fetch, pending.encode_any, respond_now=must_respond)
        self._waiting_fetch = waiting
        return waiting

    async def _wait_for_data(self, pending: PendingResponse, waiting: WaitingFetch) -> None:
        self._queue(pending, await waiting.response())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a task. The next request waits until the task ends."""
        self._current_task = self._broker.loop.create_task(work)
        self._current_task.add_done_callback(self._after_task)

    async def _run(self, pending: PendingResponse, request: Request) -> None:
        self._queue(pending, await pending.handle(request))

    def _after_task(self, task: asyncio.Task[None]) -> None:
        self._current_task = None
        self._held_bytes = 0
        if self._waiting_fetch is not None:
            self._waiting_fetch.close()
            self._waiting_fetch = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fail(error)
            return
        self._handle_backlog()
        self._close_when_done()

    def _fail(self, error: BaseException) -> None:
        _log.error("internal error while handling a request from %s", self.peer, exc_info=error)
        self._disconnect("failed-inside", "internal error while handling a request")

    # Responding

    def _respond(self, pending: PendingResponse, response: Any) -> None:
        self._queue(pending, pending.encode(response))

    def _queue(self, pending: PendingResponse, parts: Parts) -> None:
        """Send the response after all earlier responses."""
        pending.parts = parts
        while self._responses and (ready := self._responses[0].parts) is not None:
            self._responses.popleft()
            self._outgoing += ready
            self._outgoing_bytes += sum(map(len, ready))
        if self._outgoing_bytes > _COUNTED_BYTES_MIN:
            # Update the account now, so that the next Fetch response to any client is smaller.
            self._unsent_bytes = self._outgoing_bytes
            self._broker.responses_held.set_usage(self, self._outgoing_bytes)
        # Write in the next iteration of the event loop, because one sync often completes several requests.
        if self._outgoing and not self._write_scheduled:
            self._write_scheduled = True
            self._broker.loop.call_soon(self._write)
        self._close_when_done()

    def _write(self) -> None:
        self._write_scheduled = False
        parts, self._outgoing = self._outgoing, []
        size, self._outgoing_bytes = self._outgoing_bytes, 0
        if self._closed or self._transport is None:
            return
        for part in join_small(parts, _JOINED_BYTES_MAX):
            self._transport.write(part)
        self._written_bytes += size
        self._account_unsent()
        self._close_when_done()
        if self._backlog and size > self._broker.limits.unsent_bytes_max:
            self._handle_backlog()

    def _account_unsent(self) -> None:
        """Update the account with the unsent bytes, and run the timer while any remain."""
        assert self._transport is not None
        size = self._transport.get_write_buffer_size()
        if not size:
            if self._response_timer.since is not None:
                self._response_timer.stop()
        elif self._response_timer.since is None:
            self._response_timer.start(self._broker.clock.steady(), self._written_bytes - size)
        if size != self._unsent_bytes:
            self._unsent_bytes = size
            self._broker.responses_held.set_usage(self, size)

    # Closing

    def sweep(self, now: float) -> None:
        """Close the connection if the client has been idle or slow for too long."""
        limits = self._broker.limits
        if self._closed or self._transport is None:
            if now - self._closing_since > _CLOSING_S_MAX:
                self.abort()
            return
        if self._response_timer.since is not None:
            self._account_unsent()
            unsent = self._transport.get_write_buffer_size()
            if read := self._response_timer.expired(now, self._written_bytes - unsent, limits):
                self._log_closing(
                    "slow-reader", f"the client read only {read}; {unsent} bytes are unsent", unsent=unsent
                )
                self.abort()
                return
        if not self._reading_paused:
            received = self._framing.bytes_received
            if sent := self._request_timer.expired(now, received, limits):
                self._disconnect(
                    "slow-sender", f"the client sent only {sent} of a request", received=received
                )
                return
        if now - self.active_at > limits.idle_ms_max / 1000 and self.is_idle:
            self._server.idle_closed += 1
            self.close()

    def extend_timeouts(self, by_s: float) -> None:
        self.active_at += by_s
        self._request_timer.postpone(by_s)
        self._response_timer.postpone(by_s)

    def evict(self, reason: str) -> None:
        self._log_closing("overload", reason)
        self.abort()

    def _log_closing(self, event: str, reason: str, **values: object) -> None:
        text = f"connection from {self.peer} closed: {reason}"
        self._broker.notices.connection_closed(event, text, values | {"client": self.peer})

    def _disconnect(self, event: str, reason: str, **values: object) -> None:
        """Close the connection and log the reason."""
        if self._closed or self._transport is None:
            return
        self._log_closing(event, reason, **values)
        self.close()

    def close(self) -> None:
        if self._transport is not None and not self._closed:
            self._closed = True
            self._closing_since = self._broker.clock.steady()
            self._transport.close()

    def finish(self) -> None:
        """Finish the requests in progress, then close, because the broker stops. Reads no more requests."""
        if self._transport is None:
            return
        self._backlog.clear()
        self._transport.pause_reading()
        self._reading_paused = self._finishing = True
        if self._waiting_fetch is not None:
            self._waiting_fetch.respond_now()
        self._close_when_done()

    def _close_when_done(self) -> None:
        if self._finishing and not self._responses and not self._outgoing and self._current_task is None:
            self.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._closed = True
            self._closing_since = self._broker.clock.steady()
            discard_unsent_on_close(self._transport.get_extra_info("socket"))
            self._transport.abort()
