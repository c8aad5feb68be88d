"""The server's side of one subscription, from the first message to the last, over any transport.

A subscriber has no queue, only the number of its next step (a step is the changes between two positions). When the
connection accepts data, the server sends all later steps as one frame. The frame is encoded once for all subscribers
whose next step has the same number. A slow client therefore receives more steps per frame. If the history has dropped
the next step, the server disconnects the client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from headrace.broker.metrics.exposition import Exposition
from headrace.errors import HeadraceError
from headrace.model.schema import fields_to_json
from headrace.serve.errors import CursorExpired, ShuttingDown, SlowReader
from headrace.serve.http.context import ServeContext
from headrace.serve.subscribe.feed import Feed
from headrace.serve.subscribe.log_position import LogPosition
from headrace.serve.subscribe.messages import Message, new_message
from headrace.serve.subscribe.query import ResumeCursor, SubscriptionQuery
from headrace.serve.subscribe.query_view import QueryView
from headrace.serve.subscribe.snapshot import Snapshot
from headrace.serve.subscribe.top_n_view import TopNView

__all__ = ["SubscribeRequest", "Subscriber", "SubscriberEnded", "SubscriptionMetrics"]

_EMPTY_FRAME_INTERVAL_S = 1.0
"""Minimum seconds between frames that have a new position but no changes."""


class SubscriberEnded(Exception):
    """The client has disconnected."""


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    query: SubscriptionQuery
    cursor: str | None
    transport: str
    """``websocket`` or ``events``, used as a label of the metrics."""
    token: str | None
    """The token that authorized the subscription; None if no token is needed."""
    token_id: str
    accepts_reset: bool
    """If true, the server sends a snapshot instead of an error when the cursor has expired."""


class Subscriber:
    """``open_feed`` returns the feed of the view to which a name currently points."""

    def __init__(
        self,
        context: ServeContext,
        metrics: SubscriptionMetrics,
        open_feed: Callable[[str], Awaitable[Feed]],
        request: SubscribeRequest,
    ) -> None:
        self._context = context
        self._metrics = metrics
        self._open_feed = open_feed
        self.request = request
        cursor = request.cursor
        self._resume_cursor = None if cursor is None else ResumeCursor.parse(cursor, request.query)
        self.wake = asyncio.Event()
        self.last_cursor = cursor
        """The last cursor that was sent."""
        self.sent_s = context.clock.steady()
        self._position_sent_s = self.sent_s
        self._ended: BaseException | None = None
        self.answered_by = ""
        """The view that currently serves the name; empty if unknown."""

    def end(self, why: BaseException) -> None:
        """Make the subscription end soon, with this error as its last message."""
        self._ended = self._ended or why
        self.wake.set()

    def on_sent(self, message: Message) -> None:
        """The transport calls this after each message."""
        self.sent_s = self._context.clock.steady()
        if message.cursor is not None:
            self.last_cursor = message.cursor
        self._metrics.note_sent(self.request.transport, message)

    async def prepare(self) -> None:
        """Raise the errors that can be detected before the first message."""
        feed = await self._open()
        query_view = feed.preview(self.request.query)
        if self._resume_cursor is not None:
            try:
                log_position = self._resume_cursor.log_position(feed.epoch)
                await feed.resume(log_position, self._resume_cursor.sent_ms)
                query_view.check_resumable(log_position)
            except CursorExpired:
                if not self.request.accepts_reset:
                    self._metrics.resumes["too old"] += 1
                    raise

    async def messages(self) -> AsyncGenerator[Message]:
        """Yield the messages. At the end, raise the error for the last message, or ``SubscriberEnded``."""
        while True:
            feed = await self._open()
            query_view = feed.enter(self, self.request.query)
            try:
                async for message in self._feed_messages(feed, query_view):
                    yield message
            finally:
                feed.leave(self, query_view)
            self._resume_cursor = None
            self._metrics.resets["epoch" if feed.end_reason else "switched"] += 1
            yield _reset(CursorExpired(feed.end_reason or "another view now serves this name"))

    async def _open(self) -> Feed:
        self._check_running()
        return await self._open_feed(self.request.query.view)

    def _check_running(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._context.draining:
            raise ShuttingDown("the server is stopping", hint="reconnect with the cursor")

    async def _feed_messages(self, feed: Feed, query_view: QueryView) -> AsyncGenerator[Message]:
        """Yield the messages until the feed ends."""
        next_step: int | None = None
        if self._resume_cursor is not None:
            try:
                log_position = self._resume_cursor.log_position(feed.epoch)
                await feed.resume(log_position, self._resume_cursor.sent_ms)
                # Call ``since`` directly after ``resume``: during another await, the history could drop the steps.
                frame = await query_view.since(log_position, self._resume_cursor.sent_ms)
            except CursorExpired as error:
                self._metrics.resumes["too old"] += 1
                if not self.request.accepts_reset:
                    raise
                yield _reset(error)
            else:
                self._metrics.resumes["resumed"] += 1
                next_step = frame.next
                yield self._hello(feed, query_view, log_position)
                if frame.log_position != log_position:
                    for message in frame.messages:
                        yield message
        if next_step is None:
            yield self._hello(feed, query_view, None)
            if isinstance(query_view, TopNView):
                messages, next_step = await query_view.first(feed.published_end)
                for message in messages:
                    yield message
            else:
                snapshot = Snapshot(feed, query_view)
                async for message in snapshot.messages():
                    yield message
                next_step = snapshot.next
        while True:
            self._check_running()
            if self.answered_by not in ("", feed.source.view.name):
                return
            if feed.fault is not None:
                raise feed.fault
            if next_step < feed.history.first:
                raise SlowReader(
                    "changes arrived faster than the subscriber read them, and the server dropped the oldest changes",
                    hint="reconnect with the cursor",
                )
            now = self._context.clock.steady()
            if next_step < feed.published_end:
                frame = await query_view.frame(next_step, feed.published_end)
                if (
                    not frame.is_empty
                    or feed.end_reason
                    or now - self._position_sent_s >= _EMPTY_FRAME_INTERVAL_S
                ):
                    self._position_sent_s = now
                    next_step = frame.next
                    for message in frame.messages:
                        yield message
                    continue
            elif feed.end_reason:
                return
            self.wake.clear()
            if now - self.sent_s >= self._context.limits.heartbeat_s:
                yield self._heartbeat(feed, query_view, next_step)
                continue
            await self.wake.wait()

    def _hello(self, feed: Feed, query_view: QueryView, log_position: LogPosition | None) -> Message:
        query, schema = self.request.query, feed.source.state.schema
        columns = [{**field, "key": field["name"] in schema.key} for field in fields_to_json(schema.fields)]
        hello = {
            "view": query.view,
            "answered_by": feed.source.view.name,
            "key": list(schema.key),
            "columns": columns,
            "resumed": log_position is not None,
            "heartbeat_s": self._context.limits.heartbeat_s,
        }
        if query.sort is not None or query.limit is not None:
            hello["order"] = [{"column": by.column, "descending": by.descending} for by in query_view.order]
        return new_message(
            "hello", hello if log_position is None else {**hello, "cursor": query_view.cursor(log_position)}
        )

    def _heartbeat(self, feed: Feed, query_view: QueryView, next_step: int) -> Message:
        log_position = feed.history.border(next_step)
        return new_message(
            "heartbeat",
            {"cursor": query_view.cursor(log_position), "position": feed.epoch.document(log_position)},
        )


def _reset(error: HeadraceError) -> Message:
    body = {"status": 409, "code": error.code, "detail": error.message, "next": error.hint}
    return new_message("reset", body)


class SubscriptionMetrics:
    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        """Counts by transport."""
        self.ended: Counter[str] = Counter()
        """Counts by the code of the last message, or ``gone`` if the client disconnected."""
        self.resumes: Counter[str] = Counter()
        self.resets: Counter[str] = Counter()
        self._messages: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()

    def note_sent(self, transport: str, message: Message) -> None:
        self._messages[transport, message.kind] += 1
        self._bytes[transport] += len(message.data)

    def write(self, out: Exposition, subscribers: Counter[str], feeds: Iterable[Feed]) -> None:
        family = "headrace_subscribers"
        out.family(family, "gauge", "Subscribers by transport.")
        for transport in ("websocket", "events"):
            out.sample(family, {"carrier": transport}, subscribers[transport])
        for name, label, text, counter in (
            ("begun", "carrier", "Subscriptions started.", self.started),
            ("ended", "why", "Subscriptions ended, by reason.", self.ended),
            ("resumes", "outcome", "Cursors received, by outcome.", self.resumes),
            ("resets", "why", "Snapshots sent within a subscription, by reason.", self.resets),
            ("sent_bytes", "carrier", "Bytes of messages sent.", self._bytes),
        ):
            family = f"headrace_subscription_{name}_total"
            out.family(family, "counter", text)
            for label_value, count in sorted(counter.items()):
                out.sample(family, {label: label_value}, count)
        family = "headrace_subscription_messages_total"
        out.family(family, "counter", "Messages sent.")
        for (transport, kind), count in sorted(self._messages.items()):
            out.sample(family, {"carrier": transport, "type": kind}, count)
        open_feeds = [*feeds]
        for name, text, values in (
            ("followers", "Subscribers of the view.", [len(feed.subscribers) for feed in open_feeds]),
            ("queries", "Distinct queries of the subscribers.", [feed.query_views for feed in open_feeds]),
            ("steps", "Steps read since the feed was opened.", [feed.steps for feed in open_feeds]),
            (
                "history_bytes",
                "Bytes of recent steps in memory for slow subscribers.",
                [feed.history.size_bytes for feed in open_feeds],
            ),
            ("troubled", "1 while the log cannot be read.", [bool(feed.failure) for feed in open_feeds]),
        ):
            family = f"headrace_subscribed_view_{name}"
            out.family(family, "gauge", text)
            for feed, value in zip(open_feeds, values, strict=True):
                out.sample(family, {"view": feed.source.view.name}, int(value))
