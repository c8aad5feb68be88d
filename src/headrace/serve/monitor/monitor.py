"""The HTTP routes that monitor the app: its graph, its numbers now and over the last minutes, its flows and alerts.

All clients, the metrics and the readiness check share one sampler.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping

from headrace.client.progress import Progress
from headrace.ops.dead.letter_index import index_path
from headrace.ops.graph import graph_of
from headrace.ops.lag.lag import Lag
from headrace.serve.errors import NotFound, TooBusy, Unavailable
from headrace.serve.http.context import ServeContext
from headrace.serve.http.limits import TokenQuota
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
    json_response,
    text,
    wait_for_disconnect,
)
from headrace.serve.http.tokens import OPERATIONS, TokenVerifier, bearer_token
from headrace.serve.monitor.documents import AlertRule, Alerts, AppGraph, AppHistory, AppNow, FlowDocument
from headrace.serve.monitor.flow_detail import flow_detail, flow_named
from headrace.serve.monitor.runtime_probe import RuntimeProbe
from headrace.serve.monitor.sampler import Sample, Sampler
from headrace.serve.query.views import Views

__all__ = ["Monitor"]

_FIRST_SAMPLE_S = 10.0
_LATE_SAMPLE_S = 2.0
_STREAMS_MAX = 100
_MS_MAX = 2**53 - 1
_STREAM_INTERVAL_MS = (50, 60_000, 1_000)
"""Minimum, maximum and default interval of a stream."""
_RETRY = b"retry: 1000\n\n"
_HEARTBEAT = b": still here\n\n"
_NO_STORE = {"Cache-Control": "no-store"}


class Monitor(Feature):
    """Create it in the server's event loop. ``probe`` reports on the parts that run in this process. It is None if no
    part runs here.
    """

    def __init__(
        self, context: ServeContext, views: Views, tokens: TokenVerifier, probe: RuntimeProbe | None
    ) -> None:
        self._context = context
        self._tokens = tokens
        self._probe = probe
        self._graph = graph_of(context.app, probe.feed if probe else "")
        self._streams = TokenQuota("streams of /v1/app/now", _STREAMS_MAX, context.limits.token_share_percent)
        self._latest: Sample | None = None
        self._failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._sampled = asyncio.Event()
        self._sampler = Sampler(
            *(context.app, context.cluster, views, self._graph, probe),
            *(index_path(context.data, context.app.name), context.clock),
            publish=lambda sample: self._in_loop(lambda: self._publish(sample)),
            fail=lambda error: self._in_loop(lambda: self._fail(error)),
        )

    def start(self) -> None:
        self._sampler.start()

    def drain(self) -> None:
        """End the streams. The caller has already set ``context.draining``."""
        self._wake()

    async def close(self) -> None:
        self._sampler.close()

    async def lags(self) -> Mapping[str, Lag]:
        """Return the lag of the rows that each view serves. The result is empty if the log does not respond."""
        try:
            return (await self._newest_sample()).served
        except Unavailable:
            return {}

    def progress(self) -> Mapping[str, Progress] | None:
        """Return the progress of the flows in the last sample; None before the first sample."""
        return None if self._latest is None else self._latest.progress

    async def log_error(self) -> str:
        """Return why the log does not respond, or an empty text if it responded to a recent sample.

        If the last sample is not recent, wait for the next one.
        """
        if not self._is_recent():
            await self._next(_FIRST_SAMPLE_S if self._latest is None else _LATE_SAMPLE_S)
        if self._failure is not None:
            return f"the monitor has failed: {type(self._failure).__name__}"
        if self._latest is None:
            return "the log has not been sampled yet"
        if self._latest.error or self._is_recent():
            return self._latest.error
        age_s = self._context.clock.steady() - self._latest.started_s
        return f"the log has not responded for {age_s:.0f} s"

    def _is_recent(self) -> bool:
        """Return whether the last sample is recent. A sample with an error always counts as recent, because the next
        one is late while the log does not respond.
        """
        latest = self._latest
        if latest is None:
            return False
        return bool(latest.error) or self._context.clock.steady() < latest.recent_until_s

    async def _newest_sample(self) -> Sample:
        """Return the newest sample. Wait for the first one."""
        if self._latest is None:
            await self._next(_FIRST_SAMPLE_S)
        if self._latest is None:
            raise Unavailable("the app has not been sampled yet", hint="retry in a moment")
        if self._failure is not None:
            raise Unavailable(
                f"the monitor has failed: {type(self._failure).__name__}",
                hint="restart the server; this is a bug in headrace, and the server's output shows the error",
            )
        return self._latest

    async def _next(self, timeout_s: float) -> None:
        """Wait for the next sample, for the drain, or for the timeout."""
        if not self._context.draining:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._sampled.wait()

    # Called in the sampler's thread

    def _in_loop(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _publish(self, sample: Sample) -> None:
        self._latest = sample
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._context.report("sampling the app", error)
        self._wake()

    def _wake(self) -> None:
        """Wake all waiting tasks. A task that starts to wait after this call waits for the next sample."""
        self._sampled.set()
        self._sampled = asyncio.Event()

    # Handlers

    async def describe_app(self, request: Request) -> Response:
        return json_response(self._graph.to_json())

    async def read_now(self, request: Request) -> Response:
        return Response((await self._newest_sample()).encoded, headers=_NO_STORE)

    async def stream_now(self, request: Request) -> Response:
        self._streams.expect_share(request.caller.token_id)
        if self._streams.is_full:
            raise TooBusy(f"too many streams (limit {self._streams.total})", hint="poll /v1/app/now instead")
        return event_stream(lambda receive: self._events(request, receive), _NO_STORE)

    async def _events(self, request: Request, receive: Receive) -> AsyncGenerator[bytes]:
        context = self._context
        every_s = request.parameters.get("every_ms", _STREAM_INTERVAL_MS[2]) / 1_000
        heartbeat_s = context.limits.heartbeat_s
        with self._streams.held(request.caller.token_id):
            disconnect = asyncio.create_task(wait_for_disconnect(receive))
            try:
                yield _RETRY
                sent, sent_s = 0, float("-inf")
                active_s = context.clock.steady()
                while not context.draining and not disconnect.done() and self._may_read(request):
                    now_s, latest = context.clock.steady(), self._latest
                    # Samples jitter around their interval. A tolerance of 10 % avoids skipping every other sample.
                    if latest is not None and latest.number != sent and now_s - sent_s >= every_s * 0.9:
                        sent, sent_s, active_s = latest.number, now_s, now_s
                        yield b"data: " + latest.encoded + b"\n\n"
                    elif now_s - active_s >= heartbeat_s:
                        active_s = now_s
                        yield _HEARTBEAT
                    waiting = asyncio.create_task(self._next(min(heartbeat_s, max(every_s, 1.0))))
                    await asyncio.wait({waiting, disconnect}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await waiting
            finally:
                disconnect.cancel()

    def _may_read(self, request: Request) -> bool:
        """Return False if the stream's token was revoked, or if it has no token and tokens are now required."""
        token = bearer_token(request.headers)
        if token is None:
            return not self._tokens.are_needed()
        caller = self._tokens.caller(token)
        return caller is not None and caller.may(OPERATIONS)

    async def read_history(self, request: Request) -> Response:
        node = request.parameters.get("node", "")
        ring = self._sampler.ring(node)
        if ring is None:
            raise NotFound(f"node {node[:100]!r} does not exist", hint="list the nodes: GET /v1/app")
        samples = ring.samples(request.parameters.get("since_ms", 0))
        return json_response(AppHistory(["at_ms", *ring.fields], samples), headers=_NO_STORE)

    async def describe_flow(self, request: Request) -> Response:
        context = self._context
        flow = flow_named(context.app, request.path_values["flow"])
        detail = await context.run_on_log(lambda: flow_detail(context.cluster, self._probe, flow))
        return json_response(detail, headers=_NO_STORE)

    async def list_alerts(self, request: Request) -> Response:
        sample = await self._newest_sample()
        rules = self._probe.rules() if self._probe else None
        why = ""
        if rules is None:
            why = "this process does not check alert rules; headrace run checks the rules in its settings"
        alerts = Alerts(
            firing=list(sample.firing),
            rules=None if rules is None else [AlertRule(name, when) for name, when in rules.items()],
            rules_why=why,
            changes=[*reversed([*self._sampler.progress_cache.changes])],
        )
        return json_response(alerts, headers=_NO_STORE)

    routes = (
        Route(
            *("GET", "/v1/app", OPERATIONS, describe_app, "Describe the app's parts and their connections"),
            responses={
                200: ResponseDoc("Nodes and edges. They change only with the app's declaration.", AppGraph)
            },
        ),
        Route(
            *("GET", "/v1/app/now", OPERATIONS, read_now, "Read the current state of every part"),
            description="The server samples the app about once a second for all clients. An unknown number is null, and"
            " the node's why contains the reason.",
            responses={200: ResponseDoc("Health, nodes, edges and alerts.", AppNow)},
            error_statuses=(503,),
        ),
        Route(
            *("GET", "/v1/app/now/stream", OPERATIONS, stream_now, "Stream the current state of every part"),
            description="Sends the document of /v1/app/now as server-sent events, at most once per every_ms.",
            parameters=(
                integer("every_ms", "Minimum milliseconds between two events.", *_STREAM_INTERVAL_MS),
            ),
            responses={200: ResponseDoc("Events with one document each.", media_type=EVENT_STREAM)},
            error_statuses=(429, 503),
        ),
        Route(
            *("GET", "/v1/app/history", OPERATIONS, read_history, "Read the last 15 minutes of a part"),
            parameters=(
                text("node", "A node id of /v1/app.", chars_max=300, example="flow:revenue"),
                integer("since_ms", "Only samples taken at this time or later.", 0, _MS_MAX, 0),
            ),
            responses={200: ResponseDoc("One row per sample, the oldest first.", AppHistory)},
            error_statuses=(404,),
        ),
        Route(
            *("GET", "/v1/flows/{flow}", OPERATIONS, describe_flow, "Describe a flow"),
            parameters=(text("flow", "The name of a flow.", chars_max=249, where="path"),),
            responses={
                200: ResponseDoc(
                    "Inputs, output, generation, last batches, plan and last error.", FlowDocument
                )
            },
            error_statuses=(404, 503, 504),
        ),
        Route(
            *("GET", "/v1/alerts", OPERATIONS, list_alerts, "List alerts, their rules and their changes"),
            responses={200: ResponseDoc("Alerts and rules; the last 200 changes, the newest first.", Alerts)},
            error_statuses=(503,),
        ),
    )
