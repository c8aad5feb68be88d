"""The routes for operators and monitoring: liveness, readiness, metrics, and the documentation of all routes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.broker.metrics.exposition import CONTENT_TYPE, Exposition
from headrace.serve.http.context import ServeContext
from headrace.serve.http.openapi import CSP, docs_page, openapi
from headrace.serve.http.route import Feature, Request, Response, ResponseDoc, Route, json_response
from headrace.serve.http.tokens import OPERATIONS, PUBLIC
from headrace.serve.monitor.monitor import Monitor

__all__ = ["Operations"]

_METRICS_BYTES_MAX = 4 << 20
_SERVING = ("serving", "following")


class Alive(msgspec.Struct, frozen=True):
    alive: bool


class ViewReadiness(msgspec.Struct, frozen=True):
    view: str
    ready: bool
    state: str
    behind_records: int | None
    behind_seconds: float | None


class Ready(msgspec.Struct, frozen=True):
    """``log`` and ``views`` are present only if the token has the scope read:operations."""

    ready: bool
    draining: bool
    log: str | UnsetType = UNSET
    views: list[ViewReadiness] | UnsetType = UNSET


class Operations(Feature):
    """A view whose lag exceeds ``stale_s`` seconds is not ready; 0 means no limit. ``metrics`` write the metric
    families of all features.
    """

    def __init__(
        self,
        context: ServeContext,
        monitor: Monitor,
        routes: Sequence[Route],
        stale_s: float,
        metrics: Sequence[Callable[[Exposition], None]],
    ) -> None:
        self._context = context
        self._monitor = monitor
        self._routes = routes
        self._stale_s = stale_s
        self._metrics = metrics

    async def alive(self, request: Request) -> Response:
        return json_response(Alive(alive=True))

    async def ready(self, request: Request) -> Response:
        error = await self._monitor.log_error()
        lags = {} if error else await self._monitor.lags()
        views = []
        for view in self._context.app.views:
            lag = lags.get(view.name)
            age_s = None if lag is None else lag.age_s
            is_serving = lag is not None and lag.reader.has_started and lag.reader.state in _SERVING
            is_stale = bool(self._stale_s) and (age_s is None or age_s > self._stale_s)
            views.append(
                ViewReadiness(
                    view.name,
                    ready=is_serving and not is_stale,
                    state="unknown" if lag is None else "serving" if is_serving else _state(lag.reader.state),
                    behind_records=lag.records if lag else None,
                    behind_seconds=None if age_s is None else round(age_s, 3),
                )
            )
        draining = self._context.draining
        is_ready = not draining and not error and all(view.ready for view in views)
        document = Ready(is_ready, draining)
        if request.caller.may(OPERATIONS):
            document = Ready(is_ready, draining, error or "reachable", views)
        if is_ready:
            return json_response(document)
        return json_response(document, status=503, headers={"Retry-After": "1"})

    async def metrics(self, request: Request) -> Response:
        out = Exposition(_METRICS_BYTES_MAX)
        for write in self._metrics:
            write(out)
        lags = await self._monitor.lags()
        families: tuple[tuple[str, str, dict[str, Any]], ...] = (
            (
                "headrace_served_view_behind_records",
                "Records that the view has not applied yet.",
                {view: lag.records for view, lag in lags.items()},
            ),
            (
                "headrace_served_view_behind_seconds",
                "Age of the oldest record that the view has not applied yet; 0 if it has applied all records.",
                {view: lag.age_s for view, lag in lags.items()},
            ),
        )
        for name, text, values in families:
            out.family(name, "gauge", text)
            for view, value in values.items():
                labels = {"app": self._context.app.name, "view": view}
                out.sample(name, labels, math.nan if value is None else value)
        return Response(out.text(), media_type=CONTENT_TYPE)

    async def api(self, request: Request) -> Response:
        return json_response(openapi(self._routes, self._context.limits))

    async def docs(self, request: Request) -> Response:
        page = docs_page(self._routes)
        return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": CSP})

    routes = (
        Route(
            *("GET", "/healthz", PUBLIC, alive, "Whether the server is alive"),
            responses={200: ResponseDoc("The server is alive.", Alive)},
        ),
        Route(
            *("GET", "/readyz", PUBLIC, ready, "Whether every view can be read"),
            description="The result comes from a recent sample. With a token that has read:operations, the response"
            " also contains the state and the lag of each view.",
            responses={
                200: ResponseDoc("Every view can be read.", Ready),
                503: ResponseDoc("Some views cannot be read, or the server is about to stop.", Ready),
            },
        ),
        Route(
            *("GET", "/metrics", OPERATIONS, metrics, "Metrics for Prometheus"),
            responses={
                200: ResponseDoc("Prometheus' text format.", media_type=CONTENT_TYPE.partition(";")[0])
            },
        ),
        Route(
            *("GET", "/openapi.json", PUBLIC, api, "Description of all routes, for programs"),
            responses={200: ResponseDoc("OpenAPI 3.1.")},
        ),
        Route(
            *("GET", "/docs", PUBLIC, docs, "Description of all routes, for people"),
            responses={200: ResponseDoc("A page without external resources.", media_type="text/html")},
        ),
    )


def _state(state: str) -> str:
    return "not serving" if state == "not built" else state
