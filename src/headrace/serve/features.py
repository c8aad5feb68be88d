"""Constructs all features of a server, and collects their routes in one table."""

from __future__ import annotations

import functools

from headrace.broker.net.client_limits import Account, Holder
from headrace.serve.console.console import Console
from headrace.serve.dead.dead_letters import DeadLetters
from headrace.serve.http.application import Handler
from headrace.serve.http.context import ServeContext
from headrace.serve.http.operations import Operations
from headrace.serve.http.route import Feature, MetricsWriter, Route
from headrace.serve.http.tokens import TokenVerifier
from headrace.serve.monitor.monitor import Monitor
from headrace.serve.monitor.runtime_probe import RuntimeProbe
from headrace.serve.monitor.view_status import ViewStatuses
from headrace.serve.page.page import Page
from headrace.serve.proofs.proofs import Proofs
from headrace.serve.query.causality import Causality
from headrace.serve.query.position_waiter import PositionWaiter
from headrace.serve.query.topic_queries import TopicQueries
from headrace.serve.query.topics import Topics
from headrace.serve.query.view_queries import ViewQueries
from headrace.serve.query.views import Views
from headrace.serve.sql.sql_queries import SqlQueries
from headrace.serve.subscribe.subscriptions import Subscriptions
from headrace.serve.writes.topic_writes import TopicWrites
from headrace.settings import ServeSettings

__all__ = ["ROUTES", "Features"]

_FEATURES: tuple[type[Feature], ...] = (
    *(Subscriptions, SqlQueries, ViewQueries, TopicQueries, TopicWrites),
    *(ViewStatuses, Console, DeadLetters, Proofs, Monitor, Operations, Page),
)

ROUTES: tuple[Route, ...] = tuple(route for feature in _FEATURES for route in feature.routes)


class Features:
    """All features of a server. Construct it in the server's event loop.

    ``probe`` reports on the app that runs in the same process, if any.
    """

    def __init__(
        self,
        context: ServeContext,
        settings: ServeSettings,
        tokens: TokenVerifier,
        unsent: Account[Holder],
        probe: RuntimeProbe | None,
        http_metrics: MetricsWriter,
    ) -> None:
        self._context = context
        self._views = views = Views(
            *(context.app, context.cluster, context.data, context.clock, context.limits.threads)
        )
        self._causality = causality = Causality(context.cluster, context.app)
        self.waiter = PositionWaiter(views, causality, context.executor, context.clock)
        self.subscriptions = Subscriptions(context, tokens, views)
        self.sql = SqlQueries(context, tokens, views, causality, self.waiter, unsent)
        monitor = Monitor(context, views, tokens, probe)
        topics = Topics(context.app, context.cluster, causality)
        view_queries = ViewQueries(context, views, causality, self.waiter, monitor)
        writes = TopicWrites(context, topics, settings.requests_keep_s)
        metrics = [
            http_metrics,
            *(feature.write_metrics for feature in (view_queries, self.subscriptions, self.sql)),
        ]
        self._features: tuple[Feature, ...] = (
            *(self.subscriptions, self.sql, view_queries, TopicQueries(context, topics), writes),
            *(ViewStatuses(context, views, monitor), Console(context, topics, writes.plain_writer)),
            *(DeadLetters(context, monitor), Proofs(context, views, probe), monitor),
            *(Operations(context, monitor, ROUTES, settings.stale_s, metrics), Page()),
        )
        assert tuple(map(type, self._features)) == _FEATURES

    def handlers(self) -> list[tuple[Route, Handler]]:
        return [
            (route, functools.partial(route.handle, feature))
            for feature in self._features
            for route in feature.routes
        ]

    def start(self) -> None:
        for feature in self._features:
            feature.start()

    def drain(self) -> None:
        """Answer all waiting requests immediately, and start no more long operations."""
        self._context.draining = True
        self.waiter.draining = True
        for feature in self._features:
            feature.drain()

    async def close(self) -> None:
        for feature in reversed(self._features):
            await feature.close()
        self._context.executor.close()
        self._causality.close()
        self._views.close()
        self._context.traces.close()
