"""The status of every view: its store, rows, position, lag, and last proof."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.model.declarations import View
from headrace.model.store import OnRead
from headrace.ops.lag.lag import Lag
from headrace.ops.verify.outdated import OutdatedProofs
from headrace.ops.verify.report import TOPIC, Report, last_reports
from headrace.serve.http.context import ServeContext
from headrace.serve.http.route import Feature, Request, Response, ResponseDoc, Route, json_response
from headrace.serve.http.tokens import READ_VIEW
from headrace.serve.monitor.monitor import Monitor
from headrace.serve.query.position_token import PositionDocument, position_document
from headrace.serve.query.views import Views
from headrace.stores.position import Position, ViewState
from headrace.stores.registry import open_reader

__all__ = ["Behind", "PartitionLag", "RowCounts", "ViewStatuses", "lag_behind"]

_FRESH_S = 0.5
_CONCURRENT_MAX = 4
"""At most this many views are queried at the same time, so that most threads remain free for requests."""


_State = Literal["serving", "not serving", "not readable"]


class PartitionLag(msgspec.Struct, frozen=True):
    partition: int
    at: int
    end: int | None
    behind: int | None


class LastVerdict(msgspec.Struct, frozen=True):
    verdict: str
    line: str
    began_ms: int
    seconds: float


class ViewStatus(msgspec.Struct, frozen=True, kw_only=True):
    view: str
    answered_by: str
    topic: str
    written_by: Annotated[str | None, Meta(description="The flow that writes the topic.")]
    key: list[str]
    store: str
    state: _State
    why: str
    rows: Annotated[int | None, Meta(description="The result of the last count; it can be old.")]
    dead: int | None
    position: PositionDocument | None
    behind_records: int | None
    behind_bytes: Annotated[int | None, Meta(description="An estimate.")]
    behind_seconds: float | None
    behind_batches: int | None
    partitions: list[PartitionLag]
    verified: LastVerdict | None


class ViewStatusList(msgspec.Struct, frozen=True):
    app: str
    sql: Annotated[bool, Meta(description="True if the server accepts SQL.")]
    rows_max: Annotated[int, Meta(description="Maximum rows of one page.")]
    views: list[ViewStatus]


class ViewStatuses(Feature):
    """Use it in one event loop. Requests that arrive during a query share its result."""

    def __init__(self, context: ServeContext, views: Views, monitor: Monitor) -> None:
        self._context = context
        self._views = views
        self._monitor = monitor
        self._rows = RowCounts(context)
        self._verdicts = _Verdicts(context.cluster, context.app)
        self._lock = asyncio.Lock()
        self._queried_s = float("-inf")
        self._statuses: dict[str, ViewStatus] = {}

    async def list_statuses(self, request: Request) -> Response:
        context = self._context
        statuses = await self._all()
        views = [status for name, status in statuses.items() if request.caller.may(READ_VIEW, name)]
        has_sql = all(find_spec(name) is not None for name in ("duckdb", "pyarrow"))
        return json_response(
            ViewStatusList(context.app.name, has_sql, context.limits.rows_max, views),
            headers={"Cache-Control": "private, no-cache"},
        )

    async def _all(self) -> dict[str, ViewStatus]:
        """Return the status of each view, by the name under which clients read it."""
        clock = self._context.clock
        async with self._lock:
            if clock.steady() - self._queried_s > _FRESH_S:
                self._statuses = await self._query()
                self._queried_s = clock.steady()
            return self._statuses

    async def _query(self) -> dict[str, ViewStatus]:
        slots = asyncio.Semaphore(_CONCURRENT_MAX)
        lags = await self._monitor.lags()
        try:
            verdicts = await self._context.run_on_log(self._verdicts.by_view)
        except HeadraceError:
            verdicts = {}

        async def status(name: str) -> ViewStatus:
            async with slots:
                view = self._views.resolve(name)
                return await self._status(name, view, lags.get(view.name), verdicts.get(view.name))

        names = self._views.names
        return dict(zip(names, await asyncio.gather(*map(status, names)), strict=True))

    async def _status(
        self, name: str, view: View, lag: Lag | None, verified: LastVerdict | None
    ) -> ViewStatus:
        context = self._context
        writer = context.app.writer_of(view.topic)
        view_state = None
        try:
            view_state = await context.executor.run(
                lambda: self._views.state(view), context.limits.read_s, view.store
            )
        except HeadraceError as error:
            state, why = _not_readable(error.message)
        else:
            state, why = _state(view, view_state)
        position = view_state.position if view_state is not None else None
        behind = lag_behind(lag, position)
        return ViewStatus(
            view=name,
            answered_by=view.name,
            topic=view.topic.name,
            written_by=writer.name if writer else None,
            key=list(view.key),
            store=type(view.store).__name__.lower(),
            state=state,
            why=why,
            rows=await self._rows.of(view) if position is not None else None,
            dead=None if position is None or isinstance(view.store, OnRead) else position.dead,
            position=None if position is None else position_document(position),
            behind_records=behind.records,
            behind_bytes=behind.bytes,
            behind_seconds=behind.seconds,
            behind_batches=behind.batches,
            partitions=behind.partitions,
            verified=verified,
        )

    routes = (
        Route(
            *("GET", "/v1/standings", READ_VIEW, list_statuses, "List the status of every view"),
            description="Lists the views that the token may read, with rows, position, lag, dead letters, and the last"
            " proof. Rows are counted from time to time, so the number can be old.",
            is_filtered=True,
            responses={200: ResponseDoc("The views.", ViewStatusList)},
            error_statuses=(503, 504),
        ),
    )


def _not_readable(why: str) -> tuple[_State, str]:
    return "not readable", why


def _state(view: View, view_state: ViewState | None) -> tuple[_State, str]:
    if view_state is None:
        return "not serving", (
            f"topic {view.topic.name!r} does not exist yet"
            if isinstance(view.store, OnRead)
            else "the view is not built yet; build it: headrace run, or headrace view follow"
        )
    if view_state.fault:
        return _not_readable(f"the store was changed or damaged: {view_state.fault}")
    return "serving", ""


class Behind(msgspec.Struct, frozen=True):
    """A view's lag, without the records that its store applied after the log was sampled."""

    records: int | None
    bytes: int | None
    seconds: float | None
    batches: int | None
    partitions: list[PartitionLag]


def lag_behind(lag: Lag | None, position: Position | None) -> Behind:
    seconds = None if lag is None or lag.age_s is None else round(lag.age_s, 3)
    batches = lag.reader.batches if lag else None
    records, size = (lag.records, lag.est_bytes) if lag else (None, None)
    if position is None:
        return Behind(records, size, seconds, batches, [])
    ends = {number: end for (_, number), end in (lag.ends if lag else {}).items()}
    unread = {number: count for (_, number), count in (lag.unread if lag else {}).items()}
    partitions = [
        _partition_lag(number, position.offsets.get(number, 0), ends.get(number), unread.get(number))
        for number in sorted({*position.offsets, *ends})
    ]
    unread_counts = [partition.behind for partition in partitions if partition.behind is not None]
    if (
        lag is not None
        and records
        and unread_counts
        and len(unread_counts) == len(partitions)
        and sum(unread_counts) < records
    ):
        share = sum(unread_counts) / records
        records, size = sum(unread_counts), None if size is None else int(size * share)
        seconds = seconds if any(unread_counts) else 0.0
    return Behind(records, size, seconds, batches, partitions)


def _partition_lag(number: int, at: int, end: int | None, behind: int | None) -> PartitionLag:
    """Correct the lag: the store was queried after the log, so its offset can be past the sampled end."""
    if end is not None and behind is not None:
        end = max(end, at)
        behind = min(behind, end - at)
    return PartitionLag(number, at, end, behind)


class _Verdicts:
    """Reads the last verification result of each view from the log. Only one thread at a time can use it."""

    def __init__(self, cluster: Cluster, app: App) -> None:
        self._cluster = cluster
        self._app = app
        self._outdated = OutdatedProofs(cluster, app)
        self._ends: dict[int, int] = {}
        self._reports: list[Report] = []

    def by_view(self) -> dict[str, LastVerdict]:
        """Return the results by view. Read them again only if the topic has grown."""
        if self._cluster.topic(TOPIC) is None:
            self._ends, self._reports = {}, []
            return {}
        ends = self._cluster.ends(TOPIC)
        if ends != self._ends:
            self._reports = [
                report for report in last_reports(self._cluster, self._app.name) if report.what == "view"
            ]
            self._ends = ends
        return {report.name: self._verdict(report) for report in self._reports}

    def _verdict(self, report: Report) -> LastVerdict:
        outdated = self._outdated.line(report)
        verdict = "outdated" if outdated else report.verdict
        return LastVerdict(verdict, outdated or report.line(), report.began_ms, report.seconds)


_INTERVAL_S = 1.0
_IDLE_FACTOR = 50
"""Minimum time between the starts of two counts, as a multiple of the duration of the first of them."""
_COUNT_WAIT_S = 0.25


@dataclass(slots=True)
class _Count:
    rows: int | None = None
    due_s: float = 0.0
    task: asyncio.Task[None] | None = None


class RowCounts:
    """Counts the rows of each view. Most stores scan all rows to count them, so it counts only from time to time.

    A caller waits only briefly: during a slow count it gets the previous number. Use it in one event loop.
    """

    def __init__(self, context: ServeContext) -> None:
        self._context = context
        self._counts: dict[str, _Count] = {}

    async def of(self, view: View) -> int | None:
        """Return the number of rows, or None if the rows are not counted yet or cannot be counted."""
        if isinstance(view.store, OnRead):
            return None
        count = self._counts.setdefault(view.name, _Count())
        if count.task is None and self._context.clock.steady() >= count.due_s:
            count.task = asyncio.create_task(self._count(view, count))
        if count.task is not None:
            await asyncio.wait((count.task,), timeout=_COUNT_WAIT_S)
        return count.rows

    async def _count(self, view: View, count: _Count) -> None:
        context = self._context
        started_s = context.clock.steady()
        try:
            count.rows = await context.executor.run(
                lambda: self._query(view), context.limits.read_s, view.store
            )
        except HeadraceError:
            # The view's status shows the store's error.
            count.rows = None
        finally:
            took_s = context.clock.steady() - started_s
            count.due_s = started_s + max(_INTERVAL_S, took_s * _IDLE_FACTOR)
            count.task = None

    def _query(self, view: View) -> int | None:
        reader = open_reader(view, self._context.app.name, self._context.data)
        if reader is None:
            return None
        try:
            return reader.count(view.name)
        finally:
            reader.close()
