"""The context that all features of the server share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock, SystemClock
from headrace.model.declarations import View
from headrace.serve.http.executor import LOG, BoundedExecutor
from headrace.serve.http.limits import Limits
from headrace.serve.http.request_log import NO_TRACES, AccessLog, Traces
from headrace.settings import FlowSettings, ServeSettings

__all__ = ["ServeContext"]

T = TypeVar("T")


@dataclass(slots=True)
class ServeContext:
    app: App
    cluster: Cluster
    data: Path
    """The data directory."""
    clock: Clock
    limits: Limits
    executor: BoundedExecutor
    traces: Traces
    access_log: AccessLog
    report: Callable[[str, BaseException], None]
    """Reports an unexpected error; the text is the request id or names the operation. Thread-safe."""
    future_us: int
    """How far an event time may be ahead of the log's timestamp (setting ``flow.future_ms``)."""
    draining: bool = False
    """True once the server is about to stop."""

    @classmethod
    def of(
        cls,
        app: App,
        cluster: Cluster,
        data: Path,
        settings: ServeSettings,
        *,
        traces: Traces = NO_TRACES,
        access_log: AccessLog | None = None,
        report: Callable[[str, BaseException], None] = lambda where, error: None,
        future_ms: int = FlowSettings().future_ms,
    ) -> ServeContext:
        """Call this in the server's event loop."""
        limits = Limits.of(settings)
        executor = BoundedExecutor(limits.threads, limits.queue_max)
        log = access_log or AccessLog(None)
        clock = SystemClock()
        return cls(app, cluster, data, clock, limits, executor, traces, log, report, future_ms * 1_000)

    async def run_on_log(self, work: Callable[[], T]) -> T:
        """Run ``work``, which queries the log, in a thread. The timeout is ``limits.read_s``."""
        return await self.executor.run(work, self.limits.read_s, LOG)

    async def run_on_store(self, work: Callable[[], T], view: View) -> T:
        """Run ``work``, which queries the view's store, in a thread. The timeout is ``limits.read_s``."""
        return await self.executor.run(work, self.limits.read_s, view.store)
