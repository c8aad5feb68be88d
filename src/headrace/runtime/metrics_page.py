"""What a running app tells Prometheus: lags, losses to come, alerts, and what flows and views have done.

Groups have the names of the usual exporters; everything else is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.exposition import Exposition
from headrace.ops.alerts.watch import AlertWatch
from headrace.ops.lag.lag import Lag
from headrace.views.follower import Follower

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner

__all__ = ["metrics_page"]

_PAGE_BYTES_MAX = 16 << 20

_LAG_GAUGES = (
    ("headrace_lag_records", "Records that the reader has not read yet.", "lag"),
    ("headrace_lag_bytes", "Bytes of those, by the average record: an estimate.", "bytes"),
    ("headrace_lag_seconds", "Since the oldest of those was written; 0 if there is none.", "age"),
    (
        "headrace_time_to_loss_seconds",
        "Until retention may remove a record that was not read, at the present rates; +Inf for never.",
        "time_to_loss",
    ),
    ("headrace_gone_records", "Records that were deleted before the reader read them.", "gone"),
)


def metrics_page(
    app: str, flows: Sequence[FlowRunner], followers: Sequence[Follower], alerts: AlertWatch | None
) -> bytes:
    out = Exposition(_PAGE_BYTES_MAX)
    _flows(app, flows, out)
    _views(app, followers, out)
    if alerts is not None:
        lags = alerts.lags
        _lags(app, lags, out)
        _groups(lags, out)
        _alerts(app, alerts, out)
    out.one("headrace_samples_left_out", "gauge", "Samples that were too many for one scrape.", out.left_out)
    return out.text()


def _flows(app: str, flows: Sequence[FlowRunner], out: Exposition) -> None:
    lasts = [(one.status, one.current.last if one.current else None) for one in list(flows)]
    out.family("headrace_flow_up", "gauge", "1 for a flow that runs.")
    for status, _ in lasts:
        out.sample("headrace_flow_up", {"app": app, "flow": status.name}, int(status.state == "running"))
    for short, text in (
        ("rows_in", "Rows that the flow's generation has read."),
        ("rows_out", "Rows that it has written."),
        ("late", "Rows that came too late."),
        ("dead", "Dead letters of its events."),
        ("table_dead", "Dead letters of the tables that it reads."),
    ):
        name = f"headrace_flow_{short}_total"
        out.family(name, "counter", text)
        for status, last in lasts:
            if last is not None:
                out.sample(name, {"app": app, "flow": status.name}, getattr(last.totals, short))


def _views(app: str, followers: Sequence[Follower], out: Exposition) -> None:
    states = [one.status for one in list(followers)]
    out.family("headrace_view_up", "gauge", "1 for a view that is followed, 0 while it waits or is built.")
    for status in states:
        out.sample("headrace_view_up", {"app": app, "view": status.view}, int(status.state == "following"))
    for short, text in (
        ("applied", "Changes that the view's follower has applied since it started."),
        ("dead", "Dead letters since it started."),
        ("foreign", "Records among those of its flow that the flow has not written, since it started."),
        ("repeats", "Rows that a flow in real time had written before, left out since it started."),
    ):
        name = f"headrace_view_{short}_total"
        out.family(name, "counter", text)
        for status in states:
            out.sample(name, {"app": app, "view": status.view}, getattr(status, short))


def _lags(app: str, lags: Sequence[Lag], out: Exposition) -> None:
    """What is not known has no sample."""
    measured = [(lag.reader, lag.measures) for lag in lags]
    for name, text, measure in _LAG_GAUGES:
        out.family(name, "gauge", text)
        for reader, measures in measured:
            value = measures[measure]
            if value is not None:
                out.sample(name, {"app": app, "what": reader.what, "name": reader.name}, value)


def _groups(lags: Sequence[Lag], out: Exposition) -> None:
    groups = [lag for lag in lags if lag.reader.what == "group"]
    name = "kafka_consumergroup_current_offset"
    out.family(name, "gauge", "The offset that the group has committed.")
    for lag in groups:
        for (topic, number), at in lag.reader.at.items():
            out.sample(name, {"consumergroup": lag.reader.name, "topic": topic, "partition": number}, at)
    name = "kafka_consumergroup_lag"
    out.family(name, "gauge", "Records that the group has not committed yet.")
    for lag in groups:
        for (topic, number), count in lag.places.items():
            out.sample(name, {"consumergroup": lag.reader.name, "topic": topic, "partition": number}, count)
    name = "kafka_consumergroup_lag_seconds"
    out.family(name, "gauge", "Since the oldest record that the group has not committed was written.")
    for lag in groups:
        if lag.age_s is not None:
            out.sample(name, {"consumergroup": lag.reader.name}, lag.age_s)


def _alerts(app: str, alerts: AlertWatch, out: Exposition) -> None:
    name = "headrace_alert_firing"
    out.family(name, "gauge", "1 for an alert that fires.")
    for one in alerts.firing:
        out.sample(name, {"app": app, "alert": one.alert, "what": one.what, "name": one.name}, 1)
    name = "headrace_alerts_fired_total"
    out.family(name, "counter", "How often an alert has begun to fire.")
    for alert, count in list(alerts.fired.items()):
        out.sample(name, {"app": app, "alert": alert}, count)
    looked_s = math.nan if alerts.looked_ms is None else alerts.looked_ms / 1_000
    out.family(
        "headrace_alerts_looked_timestamp_seconds", "gauge", "When lags were last judged by the rules."
    )
    out.sample("headrace_alerts_looked_timestamp_seconds", {"app": app}, looked_s)
