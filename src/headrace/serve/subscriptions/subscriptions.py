"""Everybody who follows views of this server, and the feeds that they share."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.exposition import Exposition
from headrace.model.view import View
from headrace.serve.errors import NotServing, ShareTaken
from headrace.serve.shares import share_of
from headrace.serve.subscriptions.counts import SubscriptionCounts
from headrace.serve.subscriptions.errors import TooManySubscribers
from headrace.serve.subscriptions.feed import Feed
from headrace.serve.subscriptions.login import still_allowed
from headrace.serve.subscriptions.source import Source, find_source
from headrace.serve.subscriptions.subscriber import Subscriber
from headrace.serve.work import LOG

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["Subscriptions"]

_SWEEP_S = 1.0
_IDLE_S = 60.0
_JOIN_S = 2.0


class Subscriptions:
    """In one event loop; it looks around once a second from the first feed on, whether or not somebody takes it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._feeds: dict[str, Feed] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._subscribers: set[Subscriber] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._stopped: list[Feed] = []
        self.counts = SubscriptionCounts()

    def page(self, out: Exposition) -> None:
        carriers = Counter(one.carrier for one in self._subscribers)
        self.counts.page(out, carriers, self._feeds.values())

    # Who follows

    def expect_room(self, carrier: str, token_id: str) -> None:
        limits = self._served.limits
        peers = [one for one in self._subscribers if one.carrier == carrier]
        # Events take the place of other requests.
        most = limits.subscribers_max
        if carrier == "events":
            most = min(most, max(1, limits.connections_max // 2))
        if len(peers) >= most:
            raise TooManySubscribers(
                f"too many subscribers by {carrier} (limit {most})",
                hint="come again later; serve.subscribers and serve.connections allow more",
            )
        share = share_of(most, limits.token_share_percent)
        if token_id and sum(one.token_id == token_id for one in peers) >= share:
            raise ShareTaken(
                f"too many subscribers by {carrier} with this token (limit {share})",
                hint="end one, or raise serve.token_share_percent",
            )

    def enter(self, subscriber: Subscriber) -> None:
        self.expect_room(subscriber.carrier, subscriber.token_id)
        self._subscribers.add(subscriber)
        self.counts.begun[subscriber.carrier] += 1

    def leave(self, subscriber: Subscriber, why: str) -> None:
        self._subscribers.discard(subscriber)
        self.counts.ended[why] += 1

    # What they follow

    async def feed(self, name: str) -> Feed:
        """Of the view that answers to the name now; begun if nobody follows it yet."""
        served = self._served
        view = served.views.answering(name)
        async with self._opening.setdefault(view.name, asyncio.Lock()):
            feed = self._feeds.get(view.name)
            if feed is not None and not feed.over:
                return feed
            source = await self._source(view)
            if feed is not None:
                self._stop(feed)
            feed = self._feeds[view.name] = Feed(served, source)
            if self._sweeper is None:
                self._sweeper = asyncio.create_task(self._sweep_on())
            return feed

    async def _source(self, view: View) -> Source:
        served, limit_s = self._served, self._served.limits.read_s
        standing = await served.work.run(lambda: served.views.standing(view), limit_s, view.store)
        if standing is None or standing.fault:
            raise NotServing(
                f"view {view.name!r} has nothing to read yet",
                hint="it is built by whoever follows it: headrace run, or headrace view follow",
            )
        find = functools.partial(find_source, served.cluster, view, served.app.flows, standing)
        return await served.work.run(find, limit_s, LOG)

    def _stop(self, feed: Feed) -> None:
        feed.stop()
        self._stopped.append(feed)
        if self._feeds.get(feed.source.view.name) is feed:
            del self._feeds[feed.source.view.name]

    # Looking around

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self._served.clock.steady()
            for feed in [*self._feeds.values()]:
                if not feed.followers and now - feed.idle_since > _IDLE_S:
                    self._stop(feed)
            self._stopped.clear()
            for one in self._subscribers:
                error = still_allowed(self._served, one.token, one.wanted.view)
                if error is not None:
                    one.end(error)
                one.answered_by = self._served.views.answering(one.wanted.view).name
                # It finds out by itself whether it has something to say.
                one.wake.set()

    # Ending

    def drain(self) -> None:
        for one in self._subscribers:
            one.wake.set()

    async def drained(self, limit_s: float) -> None:
        """Until everybody was told, or as long as that may take."""
        deadline = self._served.clock.steady() + limit_s
        while self._subscribers and self._served.clock.steady() < deadline:
            await asyncio.sleep(0.01)

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        feeds = [*self._feeds.values(), *self._stopped]
        for feed in feeds:
            feed.stop()
        for feed in feeds:
            feed.join(_JOIN_S)
