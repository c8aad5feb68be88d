"""Builds the response of ``/v1/app/now`` from the status of the running parts and a measurement of the log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from headrace.app import App
from headrace.clock import Clock
from headrace.model.declarations import Flow, Topic, View
from headrace.model.progress import Batch
from headrace.ops.alerts.alert_log import AlertRecord
from headrace.ops.graph import Graph, flow_id, source_id, topic_id, view_id
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.monitor import Measurement
from headrace.ops.lag.rates import Rates
from headrace.ops.lag.reader import ViewPosition
from headrace.serve.monitor.cause import PartLag, causes
from headrace.serve.monitor.health import Facts, health_of
from headrace.serve.monitor.runtime_probe import Failure, FlowStatus, FollowerStatus, RuntimeStatus

__all__ = ["AppDocuments"]

_RATE_S = 5.0
_NO_LAG = {"records": None, "bytes": None, "seconds": None}
_NOT_IN_THIS_PROCESS = "this process does not run it; the numbers come from the log"


class AppDocuments:
    """Use it in one thread. A rate is measured from one document to the next."""

    def __init__(self, app: App, graph: Graph, clock: Clock) -> None:
        self._app = app
        self._graph = graph
        self._clock = clock
        self._rates = Rates(_RATE_S)
        self._rate_keys: set[tuple[str, str]] = set()
        self._causes: frozenset[str] = frozenset()

    def build(
        self, status: RuntimeStatus | None, measured: Measurement, alerts: list[AlertRecord], uptime_s: float
    ) -> dict[str, Any]:
        self._rate_keys = set()
        nodes: dict[str, dict[str, Any]] = {}
        for topic in self._app.topics:
            nodes |= self._topic(topic, measured)
        for flow in self._app.flows:
            nodes[flow_id(flow.name)] = self._flow(flow, status, measured)
        for view in self._app.views:
            nodes[view_id(view.name)] = self._view(view, status, measured)
        for view in self._app.computed:
            nodes[view_id(view.name)] = _on_read()
        edges = self._edges(nodes, measured)
        self._rates.retain(self._rate_keys)
        self._mark_causes(nodes, measured)
        firing = [alert.row() for alert in alerts]
        return {
            "at_ms": self._clock.now_ms(),
            "uptime_s": round(uptime_s, 1),
            "live": status is not None,
            "health": health_of(self._facts(status, measured, nodes, firing)).document(),
            "nodes": nodes,
            "edges": edges,
            "alerts": firing,
        }

    # Nodes

    def _topic(self, topic: Topic, measured: Measurement) -> dict[str, dict[str, Any]]:
        log, name = measured.log, measured.log_name(self._app, topic)
        partitions = [(name, number) for number in range(log.partitions.get(name, 0))]
        sizes = [log.sizes[partition] for partition in partitions if partition in log.sizes]
        end = sum(log.ends[partition] for partition in partitions) if partitions else None
        per_s = self._rate(topic_id(topic.name), name, end)
        node = {
            "state": "there" if partitions else "not there",
            "log": name,
            "end": end,
            "records": sum(log.ends[partition] - log.starts[partition] for partition in partitions)
            if partitions
            else None,
            "per_s": per_s,
            "bytes": sum(sizes) if partitions and len(sizes) == len(partitions) else None,
            "cause": False,
        }
        if self._app.writer_of(topic) is not None:
            return {topic_id(topic.name): node}
        return {source_id(topic.name): {"per_s": per_s, "cause": False}, topic_id(topic.name): node}

    def _flow(self, flow: Flow, status: RuntimeStatus | None, measured: Measurement) -> dict[str, Any]:
        running = (
            status.flows.get(flow.name, FlowStatus("unknown", "this process does not run it"))
            if status
            else None
        )
        progress, lag = measured.progress.get(flow.name), measured.lags.get(("flow", flow.name))
        last = progress.last if progress else None
        totals = last.totals if last else None
        generation = progress.generation.generation if progress else None
        state, why = (running.state, running.why) if running else _logged_state(lag)
        key = flow_id(flow.name)
        return {
            "state": state,
            "why": why,
            "generation": generation,
            "per_s_in": self._rate(key, f"{generation}/in", totals.rows_in if totals else 0),
            "per_s_out": self._rate(key, f"{generation}/out", totals.rows_out if totals else 0),
            "rows_in": totals.rows_in if totals else 0,
            "rows_out": totals.rows_out if totals else 0,
            "latency_ms": running.took_ms if running else None,
            "batch": last.batch if last else None,
            "committed_ms": last.committed_ms if last else None,
            "watermark_ms": _ms(last.next_watermark_us if last else None),
            "watermark_held_by": _watermark_held_by(flow, last),
            "state_rows": last.state_rows if last else 0,
            "state_bytes": last.state_bytes if last else 0,
            "late": totals.late if totals else 0,
            "dead": totals.dead + totals.table_dead if totals else 0,
            **_lag(lag),
            "cause": False,
        }

    def _view(self, view: View, status: RuntimeStatus | None, measured: Measurement) -> dict[str, Any]:
        follower = status.views.get(view.name) if status else None
        position, lag = measured.positions.get(view.name), measured.lags.get(("view", view.name))
        state, why = _follower_state(follower) if follower else _stored_state(lag)
        read = sum(position.offsets.values()) if position else None
        key, applied = view_id(view.name), follower.status.applied if follower else None
        return {
            "state": state,
            "why": why,
            "applied": applied,
            "per_s": self._rate(key, "applied", read if applied is None else applied),
            **_lag(lag),
            "dead": position.dead if position else 0,
            "position": _position(position),
            "verified": (follower.verified or None) if follower else None,
            "differs": follower.differs if follower else None,
            "cause": False,
        }

    # Edges

    def _edges(
        self, nodes: Mapping[str, Mapping[str, Any]], measured: Measurement
    ) -> dict[str, dict[str, Any]]:
        log_names = {topic_id(topic.name): measured.log_name(self._app, topic) for topic in self._app.topics}
        edges: dict[str, dict[str, Any]] = {}
        for begin, end in self._graph.edges:
            edge: dict[str, Any] = {"per_s": None, "lag": _NO_LAG, "time_to_loss_s": None}
            if begin.startswith("flow:"):
                edge["per_s"] = nodes[begin]["per_s_out"]
            elif begin.startswith("source:"):
                edge["per_s"] = nodes[end]["per_s"]
            else:
                what, _, name = end.partition(":")
                lag = measured.lags.get((what, name))
                if lag is not None:
                    edge = self._edge(f"{begin}>{end}", log_names[begin], lag, measured)
            edges[f"{begin}>{end}"] = edge
        return edges

    def _edge(self, key: str, topic: str, lag: Lag, measured: Measurement) -> dict[str, Any]:
        read = [at for (name, _), at in lag.reader.offsets.items() if name == topic]
        per_s = self._rate(key, topic, sum(read)) if read else None
        unread = {partition: count for partition, count in lag.unread.items() if partition[0] == topic}
        if lag.records is None or not unread:
            return {"per_s": per_s, "lag": _NO_LAG, "time_to_loss_s": None}
        records = sum(unread.values())
        sizes = [measured.log.average_record_bytes(partition) for partition, count in unread.items() if count]
        counts = [count for count in unread.values() if count]
        known_sizes = [size for size in sizes if size is not None]
        ages = [lag.ages.get(partition) for partition, count in unread.items() if count]
        known_ages = [age for age in ages if age is not None]
        return {
            "per_s": per_s,
            "lag": {
                "records": records,
                "bytes": int(sum(size * count for size, count in zip(known_sizes, counts, strict=True)))
                if len(known_sizes) == len(sizes)
                else None,
                "seconds": round(max(known_ages, default=0.0), 3) if len(known_ages) == len(ages) else None,
            },
            "time_to_loss_s": _loss_s(lag) if records else None,
        }

    # Causes and health

    def _mark_causes(self, nodes: dict[str, dict[str, Any]], measured: Measurement) -> None:
        part_lags = []
        for what, parts in (("flow", self._app.flows), ("view", self._app.views)):
            for part in parts:
                key = f"{what}:{part.name}"
                lag = None if measured.error else measured.lags.get((what, part.name))
                part_lags.append(_part_lag(key, nodes[key], lag))
        self._causes = causes(part_lags, self._graph.edges, self._causes)
        for part_lag in part_lags:
            nodes[part_lag.id]["cause"] = part_lag.id in self._causes
            nodes[part_lag.id]["growing"] = part_lag.is_growing and bool(part_lag.records)

    def _facts(
        self,
        status: RuntimeStatus | None,
        measured: Measurement,
        nodes: Mapping[str, Mapping[str, Any]],
        alerts: list[dict[str, object]],
    ) -> Facts:
        failures: dict[str, Failure] = {}
        if status is not None:
            failures |= {f"flow {name}": flow.failure for name, flow in status.flows.items() if flow.failure}
            failures |= {f"view {name}": view.failure for name, view in status.views.items() if view.failure}
            failures |= status.failures
        return Facts(
            self._app.name,
            status is not None,
            {flow.name: nodes[flow_id(flow.name)] for flow in self._app.flows},
            {view.name: nodes[view_id(view.name)] for view in self._app.views},
            failures,
            alerts,
            measured.error,
            measured.silent_s,
            status.phase if status else "",
        )

    def _rate(self, key: str, what: str, count: int | None) -> float | None:
        """Call it once per document for each ``key`` and ``what``."""
        if count is None:
            return None
        self._rate_keys.add((key, what))
        rate = self._rates.add_sample((key, what), self._clock.steady(), count)
        return None if rate is None else round(rate.per_s, 3)


def _part_lag(key: str, node: Mapping[str, Any], lag: Lag | None) -> PartLag:
    state = node["state"]
    if state in ("failed", "stopped"):
        return PartLag(key, "ended")
    if state in ("starting", "rebuilding") or lag is None or lag.records is None:
        return PartLag(key, "starting")
    return PartLag(key, "working", lag.records, lag.age_s, lag.arriving_per_s, lag.taken_per_s)


def _logged_state(lag: Lag | None) -> tuple[str, str]:
    if lag is None:
        return "unknown", "the log has not been sampled yet"
    if not lag.reader.lag_known:
        return "unknown", lag.reader.state
    if not lag.reader.has_started:
        return "not begun", "the log has no progress of this flow yet; start it: headrace run"
    return "unknown", lag.why or _NOT_IN_THIS_PROCESS


def _stored_state(lag: Lag | None) -> tuple[str, str]:
    if lag is None:
        return "unknown", "the log has not been sampled yet"
    if not lag.reader.lag_known:
        return "unknown", lag.reader.state
    if not lag.reader.has_started:
        return "not built", "the store is empty; build the view: headrace run, or headrace view follow"
    return lag.reader.state, lag.why


def _follower_state(follower: FollowerStatus) -> tuple[str, str]:
    if follower.failure is not None:
        return "failed", follower.failure.text
    return follower.status.state, follower.status.reason


def _on_read() -> dict[str, Any]:
    return {
        "state": "on read",
        "why": "the view is computed on each read and has no store",
        "applied": None,
        "per_s": None,
        **_lag(None),
        "dead": 0,
        "position": None,
        "verified": None,
        "differs": None,
        "cause": False,
        "growing": False,
    }


def _lag(lag: Lag | None) -> dict[str, Any]:
    if lag is None:
        return {"lag": _NO_LAG, "time_to_loss_s": None}
    age_s = None if lag.age_s is None else round(lag.age_s, 3)
    behind = {"records": lag.records, "bytes": lag.est_bytes, "seconds": age_s}
    return {"lag": behind, "time_to_loss_s": _loss_s(lag)}


def _loss_s(lag: Lag) -> float | None:
    return None if lag.loss is None or lag.loss.in_s is None else round(lag.loss.in_s, 3)


def _position(position: ViewPosition | None) -> dict[str, Any] | None:
    if position is None:
        return None
    batch_fields = {"generation": position.generation, "batch": position.batch} if position.generation else {}
    offsets = {str(number): at for number, at in sorted(position.offsets.items())}
    return {"topic": position.topic, **batch_fields, "offsets": offsets, "stored_ms": position.stored_ms}


def _ms(us: int | None) -> int | None:
    return None if us is None else us // 1_000


def _watermark_held_by(flow: Flow, last: Batch | None) -> str | None:
    """Return the input topic that holds the flow's watermark back. Return None for a flow without event time.

    For each input topic, subtract the allowed lateness from the event time that the topic has reached: that of its
    slowest partition if the flow rejects late events, otherwise the latest one. The watermark is the smallest result.
    """
    timed = [topic for topic in flow.streams if topic.time is not None]
    if not timed or flow.is_realtime:
        return None
    seen = dict(last.seen_us) if last else {}
    if last is not None:
        seen |= {topic: min(times.values()) for topic, times in last.next_newest_us.items() if times}
    unread = next((topic for topic in timed if topic.name not in seen), None)
    if unread is not None:
        return unread.name
    return min(timed, key=lambda topic: seen[topic.name] - topic.late // timedelta(microseconds=1)).name
