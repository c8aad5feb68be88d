"""The observed app, as the server has it: its graph, the newest sample, and who waits for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.ops.graph import graph_of
from headrace.serve.errors import NotServing, NotThere
from headrace.serve.live import Live
from headrace.serve.observed.history import Ring
from headrace.serve.observed.sampler import Sample, Sampler
from headrace.serve.shares import Shares
from headrace.serve.views import Views

__all__ = ["Observed"]

_FIRST_S = 10.0
_STREAMS_MAX = 100


class Observed:
    """Made in the event loop that serves; samples begin with ``start``. ``report`` takes faults of ours."""

    def __init__(
        self,
        app: App,
        cluster: Cluster,
        views: Views,
        live: Live | None,
        clock: Clock,
        report: Callable[[str, BaseException], None],
        share_percent: int,
    ) -> None:
        self.app = app
        self.live = live
        self.graph = graph_of(app, live.feed if live else "")
        self.streams = Shares("streams of what the app is doing", _STREAMS_MAX, share_percent)
        self.latest: Sample | None = None
        self.draining = False
        self._report = report
        self._failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._sampler = Sampler(
            app, cluster, views, self.graph, live, clock, self._from_thread, self._failed_in_thread
        )

    def start(self) -> None:
        self._sampler.start()

    @property
    def noted_changes(self) -> list[dict[str, object]]:
        """Of alerts, the newest first."""
        return [one.row() for one in reversed([*self._sampler.noted.changes])]

    async def now(self) -> Sample:
        """The newest, waiting for the first."""
        if self.latest is None:
            await self.next(_FIRST_S)
        if self.latest is None:
            raise NotServing("nothing was looked at yet", hint="ask again in a moment")
        if self._failure is not None:
            raise NotServing(
                f"looking at the app has ended: {type(self._failure).__name__}",
                hint="this is a fault in headrace, and the server's own output has all of it; start it again",
            )
        return self.latest

    async def next(self, limit_s: float) -> None:
        """Until there is another sample, the server is about to stop, or the time is over."""
        if not self.draining:
            try:
                async with asyncio.timeout(limit_s):
                    await self._came.wait()
            except TimeoutError:
                return

    def ring(self, node: str) -> Ring:
        found = self._sampler.ring(node)
        if found is None:
            raise NotThere(f"there is no node {node[:100]!r}", hint="see what there is: GET /v1/app")
        return found

    def drain(self) -> None:
        self.draining = True
        self._wake()

    def close(self) -> None:
        self._sampler.close()

    # From the sampler's thread

    def _from_thread(self, sample: Sample) -> None:
        self._in_loop(lambda: self._take(sample))

    def _failed_in_thread(self, error: BaseException) -> None:
        self._in_loop(lambda: self._fail(error))

    def _in_loop(self, do: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(do)

    def _take(self, sample: Sample) -> None:
        self.latest = sample
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._report("looking at the app", error)
        self._wake()

    def _wake(self) -> None:
        """Whoever waits has this one; whoever comes later waits for another."""
        self._came.set()
        self._came = asyncio.Event()
