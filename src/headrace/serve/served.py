"""What is served, and what serving needs: an app, its log, its stores, who may ask, and how much."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock, SystemClock
from headrace.ops.dead.letter_counts import LetterCounts
from headrace.serve.access_log import AccessLog
from headrace.serve.answers import Answers
from headrace.serve.console.console import Console
from headrace.serve.counts import Counts
from headrace.serve.coverage import Coverage
from headrace.serve.dead.replays import Replays
from headrace.serve.gate import Gate
from headrace.serve.lateness import Lateness
from headrace.serve.limits import Limits
from headrace.serve.live import Live
from headrace.serve.observed.observed import Observed
from headrace.serve.pgwire.counts import WireCounts
from headrace.serve.proofs.asked_proofs import AskedProofs
from headrace.serve.route import Route
from headrace.serve.routes import ROUTES
from headrace.serve.scope import ADMIN, Scope
from headrace.serve.sql.pool import SqlPool
from headrace.serve.standings.standings import Standings
from headrace.serve.subscriptions.subscriptions import Subscriptions
from headrace.serve.tokens import Caller, Tokens
from headrace.serve.topics import Topics
from headrace.serve.traces import NO_TRACES, Traces
from headrace.serve.views import Views
from headrace.serve.waiting import Waiting
from headrace.serve.work import Work
from headrace.serve.writes.lane import Lane
from headrace.serve.writes.plain import PlainWriter
from headrace.settings import ServeSettings

__all__ = ["ANYBODY", "NOBODY", "Served"]

ANYBODY = Caller("", "", (Scope(ADMIN),))
"""Who is on the same machine, as long as there are no tokens."""
NOBODY = Caller("", "", ())
_SOCKETS_SPARE = 100
"""For those who are told that there are too many, or have not said yet what they want."""


class Served:
    """Made in the event loop that serves. Writers begin with the first who writes. ``live`` is whoever runs the parts,
    where that is known; ``report`` takes faults of ours.
    """

    routes: tuple[Route, ...] = ROUTES

    def __init__(
        self,
        app: App,
        cluster: Cluster,
        data: Path,
        serve: ServeSettings,
        tokens: Tokens,
        *,
        log: Callable[[str], None] | None = None,
        clock: Clock | None = None,
        traces: Traces = NO_TRACES,
        live: Live | None = None,
        report: Callable[[str, BaseException], None] = lambda where, error: None,
    ) -> None:
        self.app = app
        self.cluster = cluster
        self.data = data
        self.serve = serve
        self.limits = limits = Limits.of(serve)
        self.tokens = tokens
        self.clock = clock or SystemClock()
        self.traces = traces
        self.access_log = AccessLog(log)
        self.counts = Counts()
        self.gate = Gate(limits, self.counts, self.clock)
        self.work = Work(limits.threads, limits.queue_max)
        self.views = Views(app, cluster, data, self.clock, limits.threads)
        self.answers = Answers((*app.views, *app.computed), limits.cached_bytes_max)
        self.coverage = Coverage(cluster, app)
        self.waiting = Waiting(self.views, self.coverage, self.work, self.clock)
        share = limits.token_share_percent
        self.sql = SqlPool(limits.sql_processes, limits.sql_queue_max, limits.answer_bytes_max, share)
        self.wire = WireCounts()
        self.observed = Observed(app, cluster, self.views, live, self.clock, report, share)
        self.topics = Topics(app, cluster, self.coverage)
        self.console = Console(cluster, self.clock, share)
        self.subscriptions = Subscriptions(self)
        self.sockets = Gate(
            dataclasses.replace(limits, connections_max=limits.subscribers_max + _SOCKETS_SPARE),
            self.counts,
            self.clock,
        )
        self.lateness = Lateness(app, cluster, self.views, self.work, self.clock)
        self.standings = Standings(self)
        self.replays = Replays(cluster, app, data, self.clock, lambda error: report("for a replay", error))
        self.letter_counts = LetterCounts(cluster)
        self.asked_proofs = AskedProofs(
            *(app, cluster, data, self.clock, live), lambda error: report("for a proof", error)
        )
        self._requests = data / "serve" / f"{app.name}-requests.db"
        self._lane: Lane | None = None
        self._plain: PlainWriter | None = None
        self._making = threading.Lock()
        self.draining = False

    def drain(self) -> None:
        """Whoever waits is answered now; nothing new is begun that takes long."""
        self.draining = self.waiting.draining = True
        self.subscriptions.drain()
        self.observed.drain()

    def lane(self) -> Lane:
        with self._making:
            if self._lane is None:
                keep_ms = self.serve.requests_keep_s * 1_000
                self._lane = Lane(self.cluster, self.app.name, self._requests, self.clock, keep_ms)
            return self._lane

    def plain_writer(self) -> PlainWriter:
        with self._making:
            if self._plain is None:
                self._plain = PlainWriter(self.cluster, self.clock, self.limits.write_s)
            return self._plain

    def close(self) -> None:
        self.replays.close()
        self.asked_proofs.close()
        if self._lane is not None:
            self._lane.close()
        if self._plain is not None:
            self._plain.close()
        self.subscriptions.close()
        self.observed.close()
        self.work.close()
        self.lateness.close()
        self.coverage.close()
        self.views.close()
        self.traces.close()
