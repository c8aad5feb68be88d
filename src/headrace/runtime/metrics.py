"""Serves Prometheus metrics of a running app in its own thread: lag, alerts, flows and views.

The metrics of consumer groups have the same names as in common Kafka exporters.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.metrics.endpoint import MetricsPort
from headrace.broker.metrics.exposition import Exposition
from headrace.broker.net.address import is_loopback, parse_address
from headrace.clock import SystemClock
from headrace.errors import ConfigError
from headrace.follow.follower import Follower
from headrace.ops.alerts.command import OUTCOMES
from headrace.ops.alerts.watch import AlertWatch
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.monitor import LagMonitor

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner

__all__ = ["RunMetrics"]

_STOP_S = 5.0
_PAGE_BYTES_MAX = 16 << 20

_LAG_GAUGES = (
    ("headrace_lag_records", "Records that the reader has not read yet.", "lag"),
    ("headrace_lag_bytes", "Estimated bytes of the unread records, from the average record size.", "bytes"),
    (
        "headrace_lag_seconds",
        "Age of the oldest unread record in seconds; 0 without unread records.",
        "age",
    ),
    (
        "headrace_time_to_loss_seconds",
        "Seconds until retention can delete an unread record, at the current rates; +Inf means never.",
        "time_to_loss",
    ),
    ("headrace_gone_records", "Records deleted before the reader read them.", "gone"),
)


class RunMetrics:
    def __init__(
        self,
        app: str,
        flows: Sequence[FlowRunner],
        followers: Sequence[Follower],
        lag_monitor: LagMonitor,
        alerts: AlertWatch | None,
        hosts: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._flows = flows
        self._followers = followers
        self._lag_monitor = lag_monitor
        self._alerts = alerts
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._port = MetricsPort(self._page, SystemClock(), hosts=hosts)
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics", daemon=True)

    def start(self, listen: str, *, anyone: bool) -> None:
        host, port = parse_address(listen, "metrics.listen")
        if not is_loopback(host) and not anyone:
            raise ConfigError(
                f"other machines can reach {host}, and the metrics contain the names of all flows, views and groups",
                hint="listen on 127.0.0.1, or allow everyone to read with metrics.anyone_may_read = true",
            )
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._port.listen(host, port), self._loop).result()
        except OSError as error:
            self.close()
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                hint="another process may use the port: set another port with --metrics HOST:PORT, or port 0",
            ) from error
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self._port.port}/metrics"

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_STOP_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)
            self._loop.close()

    async def _end(self) -> None:
        await self._port.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _page(self) -> bytes:
        app, out = self._app, Exposition(_PAGE_BYTES_MAX)
        _flows(app, self._flows, out)
        _views(app, self._followers, out)
        lags = self._lag_monitor.lags
        _lags(app, lags, out)
        _letters(self._lag_monitor, out)
        _groups(lags, out)
        if self._alerts is not None:
            _alerts(app, self._alerts, out)
        out.single(
            "headrace_samples_left_out",
            "gauge",
            "Samples left out to limit the size of a scrape.",
            out.omitted,
        )
        return out.text()


def _flows(app: str, flows: Sequence[FlowRunner], out: Exposition) -> None:
    statuses = [(runner.status, runner.current.last if runner.current else None) for runner in list(flows)]
    out.family("headrace_flow_up", "gauge", "1 if the flow runs.")
    for status, _ in statuses:
        out.sample("headrace_flow_up", {"app": app, "flow": status.name}, int(status.state == "running"))
    for counter, text in (
        ("rows_in", "Rows that the flow's generation has read."),
        ("rows_out", "Rows that the flow's generation has written."),
        ("late", "Rows of the flow's generation that arrived too late."),
        ("dead", "Records in the flow's streams that became dead letters."),
        ("table_dead", "Records in the flow's tables that became dead letters."),
    ):
        name = f"headrace_flow_{counter}_total"
        out.family(name, "counter", text)
        for status, last in statuses:
            if last is not None:
                out.sample(name, {"app": app, "flow": status.name}, getattr(last.totals, counter))


def _views(app: str, followers: Sequence[Follower], out: Exposition) -> None:
    states = [follower.status for follower in list(followers)]
    out.family("headrace_view_up", "gauge", "1 if the view is followed, 0 while it waits or is being built.")
    for status in states:
        out.sample("headrace_view_up", {"app": app, "view": status.view}, int(status.state == "following"))
    for counter, text in (
        ("applied", "Changes that the view's follower has applied since it started."),
        ("dead", "Dead letters of the view since its follower started."),
        ("foreign", "Records in the flow's topic that the flow did not write, since the follower started."),
        (
            "repeats",
            "Rows that a real-time flow wrote again and the view skipped, since the follower started.",
        ),
    ):
        name = f"headrace_view_{counter}_total"
        out.family(name, "counter", text)
        for status in states:
            out.sample(name, {"app": app, "view": status.view}, getattr(status, counter))


def _lags(app: str, lags: Sequence[Lag], out: Exposition) -> None:
    """Write the lag of each reader. Unknown values are left out."""
    measured = [(lag.reader, lag.measures) for lag in lags]
    for name, text, measure in _LAG_GAUGES:
        out.family(name, "gauge", text)
        for reader, measures in measured:
            value = measures[measure]
            if value is not None:
                out.sample(name, {"app": app, "what": reader.what, "name": reader.name}, value)


def _letters(monitor: LagMonitor, out: Exposition) -> None:
    name, app = "headrace_dead_letters_open", monitor.app
    owners = {flow.dead_topic: ("flow", flow.name) for flow in app.flows}
    owners |= {view.dead_topic: ("view", view.name) for view in app.views}
    out.family(name, "gauge", "Dead letters that are open: not replayed, settled or dismissed.")
    for (topic, reason), count in monitor.open_letters.items():
        if topic in owners:
            what, owner = owners[topic]
            labels = {"app": app.name, "what": what, "name": owner, "reason": reason.value}
            out.sample(name, labels, count)


def _groups(lags: Sequence[Lag], out: Exposition) -> None:
    groups = [lag for lag in lags if lag.reader.what == "group"]
    name = "kafka_consumergroup_current_offset"
    out.family(name, "gauge", "The offset that the group has committed.")
    for lag in groups:
        for (topic, number), offset in lag.reader.offsets.items():
            out.sample(name, {"consumergroup": lag.reader.name, "topic": topic, "partition": number}, offset)
    name = "kafka_consumergroup_lag"
    out.family(name, "gauge", "Records that the group has not committed yet.")
    for lag in groups:
        for (topic, number), count in lag.unread.items():
            out.sample(name, {"consumergroup": lag.reader.name, "topic": topic, "partition": number}, count)
    name = "kafka_consumergroup_lag_seconds"
    out.family(name, "gauge", "Seconds since the oldest uncommitted record was written.")
    for lag in groups:
        if lag.age_s is not None:
            out.sample(name, {"consumergroup": lag.reader.name}, lag.age_s)


def _alerts(app: str, alerts: AlertWatch, out: Exposition) -> None:
    name = "headrace_alert_firing"
    out.family(name, "gauge", "1 if the alert fires.")
    for alert in alerts.firing:
        out.sample(name, {"app": app, "alert": alert.alert, "what": alert.what, "name": alert.name}, 1)
    name = "headrace_alerts_fired_total"
    out.family(name, "counter", "How often the alert began to fire.")
    for alert_name, count in list(alerts.fired.items()):
        out.sample(name, {"app": app, "alert": alert_name}, count)
    if alerts.command is not None:
        name = "headrace_alert_commands_total"
        out.family(name, "counter", "Commands for alerts, by outcome: ok, failed, timeout or dropped.")
        for outcome in OUTCOMES:
            out.sample(name, {"app": app, "outcome": outcome}, alerts.command.counts[outcome])
    evaluated_s = math.nan if alerts.evaluated_ms is None else alerts.evaluated_ms / 1_000
    out.family(
        "headrace_alerts_evaluated_timestamp_seconds", "gauge", "When the alert rules were last evaluated."
    )
    out.sample("headrace_alerts_evaluated_timestamp_seconds", {"app": app}, evaluated_s)
