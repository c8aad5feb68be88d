"""Subscriptions to views: the subscribers, the feeds that they share, and server-sent events.

Server-sent events are the endless response to a GET. ``web_socket.py`` implements the WebSocket at the same address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncGenerator

from headrace.broker.metrics.exposition import Exposition
from headrace.model.declarations import View
from headrace.serve.errors import (
    InvalidRequest,
    ServeError,
    TokenQuotaExceeded,
    TooManySubscribers,
    Unavailable,
)
from headrace.serve.http.context import ServeContext
from headrace.serve.http.limits import share_of
from headrace.serve.http.route import (
    EVENT_STREAM,
    Feature,
    Receive,
    Request,
    Response,
    ResponseDoc,
    Route,
    event_stream,
    integer,
    text,
    wait_for_disconnect,
)
from headrace.serve.http.tokens import READ_VIEW, Caller, TokenVerifier, authorize, bearer_token
from headrace.serve.query.views import Views
from headrace.serve.subscribe.feed import Feed
from headrace.serve.subscribe.messages import close_message, error_code
from headrace.serve.subscribe.query import CHARS_MAX, LIMIT_MAX, Subscribe, SubscriptionQuery
from headrace.serve.subscribe.source import Source, find_source
from headrace.serve.subscribe.subscriber import (
    Subscriber,
    SubscriberEnded,
    SubscribeRequest,
    SubscriptionMetrics,
)

__all__ = ["Subscriptions"]

_SWEEP_S = 1.0
_IDLE_S = 60.0
_JOIN_S = 2.0
_EVENTS = "events"
_RETRY = b"retry: 1000\n\n"


class Subscriptions(Feature):
    """Use it in one event loop. After the first feed is opened, a task checks feeds and permissions once a second."""

    def __init__(self, context: ServeContext, tokens: TokenVerifier, views: Views) -> None:
        self._context = context
        self._tokens = tokens
        self._views = views
        self._feeds: dict[str, Feed] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._subscribers: set[Subscriber] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._stopped: list[Feed] = []
        self._metrics = SubscriptionMetrics()

    def write_metrics(self, out: Exposition) -> None:
        transports = Counter(subscriber.request.transport for subscriber in self._subscribers)
        self._metrics.write(out, transports, self._feeds.values())

    # Subscribers

    def authorize(self, token: str | None, view: str) -> Caller:
        """Return the caller. Raise if the caller is not allowed to read the view."""
        return authorize(self._tokens, token, view)

    def create(self, request: SubscribeRequest) -> Subscriber:
        return Subscriber(self._context, self._metrics, self.feed, request)

    def expect_capacity(self, transport: str, token_id: str) -> None:
        limits = self._context.limits
        peers = [
            subscriber.request
            for subscriber in self._subscribers
            if subscriber.request.transport == transport
        ]
        # A stream of events occupies an HTTP connection.
        subscribers_max = limits.subscribers_max
        if transport == _EVENTS:
            subscribers_max = min(subscribers_max, max(1, limits.connections_max // 2))
        if len(peers) >= subscribers_max:
            raise TooManySubscribers(
                f"too many subscribers by {transport} (limit {subscribers_max})",
                hint="try again later, or raise serve.subscribers and serve.connections",
            )
        share = share_of(subscribers_max, limits.token_share_percent)
        if token_id and sum(peer.token_id == token_id for peer in peers) >= share:
            raise TokenQuotaExceeded(
                f"too many subscribers by {transport} with this token (limit {share})",
                hint="end one of them, or raise serve.token_share_percent",
            )

    def enter(self, subscriber: Subscriber) -> None:
        transport = subscriber.request.transport
        self.expect_capacity(transport, subscriber.request.token_id)
        self._subscribers.add(subscriber)
        self._metrics.started[transport] += 1

    def leave(self, subscriber: Subscriber, why: str) -> None:
        self._subscribers.discard(subscriber)
        self._metrics.ended[why] += 1

    # Feeds

    async def feed(self, name: str) -> Feed:
        """Return the feed of the view that currently serves the name. Open the feed for the first subscriber."""
        view = self._views.resolve(name)
        async with self._opening.setdefault(view.name, asyncio.Lock()):
            feed = self._feeds.get(view.name)
            if feed is not None and not feed.end_reason:
                return feed
            source = await self._source(view)
            if feed is not None:
                self._stop(feed)
            feed = self._feeds[view.name] = Feed(self._context, self._views, source)
            if self._sweeper is None:
                self._sweeper = asyncio.create_task(self._sweep())
            return feed

    async def _source(self, view: View) -> Source:
        context = self._context
        state = await context.run_on_store(lambda: self._views.state(view), view)
        if state is None or state.fault:
            raise Unavailable(
                f"view {view.name!r} has no data yet",
                hint="start its follower: headrace run, or headrace view follow",
            )
        find = functools.partial(find_source, context.cluster, view, context.app.flows, state)
        return await context.run_on_log(find)

    def _stop(self, feed: Feed) -> None:
        feed.stop()
        self._stopped.append(feed)
        if self._feeds.get(feed.source.view.name) is feed:
            del self._feeds[feed.source.view.name]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self._context.clock.steady()
            for feed in [*self._feeds.values()]:
                if not feed.subscribers and now - feed.idle_since > _IDLE_S:
                    self._stop(feed)
            self._stopped.clear()
            for subscriber in self._subscribers:
                view = subscriber.request.query.view
                try:
                    # The token might be revoked. Creating the first token ends all subscriptions without a token.
                    self.authorize(subscriber.request.token, view)
                except ServeError as error:
                    subscriber.end(error)
                subscriber.answered_by = self._views.resolve(view).name
                # Wake the subscriber, because a heartbeat might be due.
                subscriber.wake.set()

    def drain(self) -> None:
        for subscriber in self._subscribers:
            subscriber.wake.set()

    async def wait_until_ended(self, limit_s: float) -> None:
        """Wait until every subscriber has ended, but at most ``limit_s`` seconds."""
        clock = self._context.clock
        deadline = clock.steady() + limit_s
        while self._subscribers and clock.steady() < deadline:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        feeds = [*self._feeds.values(), *self._stopped]
        for feed in feeds:
            feed.stop()
        for feed in feeds:
            feed.join(_JOIN_S)

    # Server-sent events

    async def follow_view(self, request: Request) -> Response:
        parameters = request.parameters
        self.expect_capacity(_EVENTS, request.caller.token_id)
        last_event_id = request.headers.get("last-event-id") or None
        if last_event_id is not None and len(last_event_id) > CHARS_MAX:
            raise InvalidRequest(f"Last-Event-ID must be a text of at most {CHARS_MAX} characters")
        query = SubscriptionQuery(
            request.path_values["view"],
            *(parameters.get(name) for name in ("filter", "prefix", "from", "to", "match", "sort", "limit")),
        )
        subscriber = self.create(
            SubscribeRequest(
                query,
                parameters.get("cursor") or last_event_id,
                _EVENTS,
                token=bearer_token(request.headers),
                token_id=request.caller.token_id,
                # A browser reconnects by itself with Last-Event-ID, and the page cannot react to an error.
                accepts_reset="cursor" not in parameters,
            )
        )
        await subscriber.prepare()
        return event_stream(lambda receive: self._events(request, subscriber, receive))

    async def _events(
        self, request: Request, subscriber: Subscriber, receive: Receive
    ) -> AsyncGenerator[bytes]:
        why = "gone"
        disconnect_watcher = asyncio.create_task(_end_on_disconnect(receive, subscriber))
        try:
            # This checks the limits again, because other subscribers might have started after the first check.
            self.enter(subscriber)
            yield _RETRY
            async with contextlib.aclosing(subscriber.messages()) as messages:
                async for message in messages:
                    yield message.event
                    subscriber.on_sent(message)
        except SubscriberEnded:
            pass
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            why = error_code(error)
            request.report_failure(error)
            yield close_message(error, subscriber.last_cursor, request.request_id).event
        finally:
            disconnect_watcher.cancel()
            self.leave(subscriber, why)

    routes = (
        Route(
            *("GET", "/v1/views/{view}/changes", READ_VIEW, follow_view, "Subscribe to a view"),
            description="Sends the rows of the view or of a query, then every change, as server-sent events. The same"
            " address accepts a WebSocket, whose first message contains the query.",
            permission_name="view",
            parameters=(
                text("view", "The name of a view.", chars_max=249, where="path"),
                text("filter", "Only rows that match. The syntax is the same as for reading rows."),
                text("prefix", "Only rows whose key starts with this text."),
                text("from", "Only rows whose key is equal to or greater than this key."),
                text("to", "Only rows whose key is less than this key."),
                text("match", "Only rows with these words. The view needs a full-text index."),
                text(
                    "sort",
                    "Columns to sort the snapshot by. With limit, this order also determines the first rows. A minus"
                    " sorts in descending order. Rows with equal values are sorted by key.",
                    example="-amount,name",
                ),
                integer(
                    "limit", "Only the first rows by sort or key, updated with every change.", 1, LIMIT_MAX
                ),
                text(
                    "cursor",
                    "Resume after this cursor, the last cursor that you received.",
                    chars_max=CHARS_MAX,
                ),
            ),
            responses={
                200: ResponseDoc(
                    "Events: hello, snapshot, changes, heartbeat, reset, bye.", media_type=EVENT_STREAM
                )
            },
            error_statuses=(404, 409, 422, 429, 503, 504),
            websocket=Subscribe,
        ),
    )


async def _end_on_disconnect(receive: Receive, subscriber: Subscriber) -> None:
    await wait_for_disconnect(receive)
    subscriber.end(SubscriberEnded())
