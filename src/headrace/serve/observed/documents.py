"""What ``/v1/app/now`` tells: of a look at the parts, and of what was measured, one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.app import App
from headrace.clock import Clock
from headrace.model.flow import Flow
from headrace.model.topic import Topic
from headrace.model.view import View
from headrace.ops.alerts.record import AlertRecord
from headrace.ops.graph import Graph, flow_id, source_id, topic_id, view_id
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.rates import Rates
from headrace.serve.live import Failure, LiveFlow, LiveLook, LiveView
from headrace.serve.observed.cause import Worker, causes
from headrace.serve.observed.health import Facts, health_of
from headrace.serve.observed.measuring import Measured
from headrace.serve.observed.watermark import held_by
from headrace.views.position import Position

__all__ = ["Documents"]

_RATE_S = 5.0
_NO_LAG = {"records": None, "bytes": None, "seconds": None}
_UNTOLD = "who runs it does not tell this server; this is what the log has"


class Documents:
    """In one thread: rates are those since the documents before."""

    def __init__(self, app: App, graph: Graph, clock: Clock) -> None:
        self._app = app
        self._graph = graph
        self._clock = clock
        self._rates = Rates(_RATE_S)
        self._noted: set[tuple[str, str]] = set()
        self._causes: frozenset[str] = frozenset()

    def make(
        self, live: LiveLook | None, seen: Measured, alerts: list[AlertRecord], uptime_s: float
    ) -> dict[str, Any]:
        self._noted = set()
        nodes: dict[str, dict[str, Any]] = {}
        for topic in self._app.topics:
            nodes |= self._topic(topic, seen)
        for flow in self._app.flows:
            nodes[flow_id(flow.name)] = self._flow(flow, live, seen)
        for view in self._app.views:
            nodes[view_id(view.name)] = self._view(view, live, seen)
        for view in self._app.computed:
            nodes[view_id(view.name)] = _on_read()
        edges = self._edges(nodes, seen)
        self._rates.keep(self._noted)
        self._mark_causes(nodes, seen)
        told = [one.row() for one in alerts]
        return {
            "at_ms": self._clock.now_ms(),
            "uptime_s": round(uptime_s, 1),
            "live": live is not None,
            "health": health_of(self._facts(live, seen, nodes, told)).told(),
            "nodes": nodes,
            "edges": edges,
            "alerts": told,
        }

    # Nodes

    def _topic(self, topic: Topic, seen: Measured) -> dict[str, dict[str, Any]]:
        log, name = seen.log, seen.log_name(self._app, topic)
        places = [(name, number) for number in range(log.partitions.get(name, 0))]
        sizes = [log.sizes[place] for place in places if place in log.sizes]
        end = sum(log.ends[place] for place in places) if places else None
        per_s = self._rate(topic_id(topic.name), name, end)
        node = {
            "state": "there" if places else "not there",
            "log": name,
            "end": end,
            "records": sum(log.ends[place] - log.starts[place] for place in places) if places else None,
            "per_s": per_s,
            "bytes": sum(sizes) if places and len(sizes) == len(places) else None,
            "cause": False,
        }
        if self._app.writer_of(topic) is not None:
            return {topic_id(topic.name): node}
        return {source_id(topic.name): {"per_s": per_s, "cause": False}, topic_id(topic.name): node}

    def _flow(self, flow: Flow, live: LiveLook | None, seen: Measured) -> dict[str, Any]:
        running = live.flows.get(flow.name, LiveFlow("unknown", "it is not run here")) if live else None
        progress, lag = seen.progress.get(flow.name), seen.lags.get(("flow", flow.name))
        last = progress.last if progress else None
        totals = last.totals if last else None
        generation = progress.generation.generation if progress else None
        state, why = (running.state, running.why) if running else _noted_state(lag)
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
            "watermark_held_by": held_by(flow, last),
            "state_rows": last.state_rows if last else 0,
            "state_bytes": last.state_bytes if last else 0,
            "late": totals.late if totals else 0,
            "dead": totals.dead + totals.table_dead if totals else 0,
            **_lag(lag),
            "cause": False,
        }

    def _view(self, view: View, live: LiveLook | None, seen: Measured) -> dict[str, Any]:
        followed = live.views.get(view.name) if live else None
        position, lag = seen.positions.get(view.name), seen.lags.get(("view", view.name))
        state, why = _followed_state(followed) if followed else _stored_state(lag)
        status = followed.status if followed else None
        read = sum(position.offsets.values()) if position else None
        key, applied = view_id(view.name), status.applied if status else None
        return {
            "state": state,
            "why": why,
            "applied": applied,
            "per_s": self._rate(key, "applied", read if applied is None else applied),
            **_lag(lag),
            "dead": position.dead if position else 0,
            "position": _position(position),
            "verified": (followed.verified or None) if followed else None,
            "differs": followed.differs if followed else None,
            "cause": False,
        }

    # Edges

    def _edges(self, nodes: Mapping[str, Mapping[str, Any]], seen: Measured) -> dict[str, dict[str, Any]]:
        log_names = {topic_id(topic.name): seen.log_name(self._app, topic) for topic in self._app.topics}
        edges: dict[str, dict[str, Any]] = {}
        for begin, end in self._graph.edges:
            told: dict[str, Any] = {"per_s": None, "lag": _NO_LAG, "time_to_loss_s": None}
            if begin.startswith("flow:"):
                told["per_s"] = nodes[begin]["per_s_out"]
            elif begin.startswith("source:"):
                told["per_s"] = nodes[end]["per_s"]
            else:
                what, _, name = end.partition(":")
                lag = seen.lags.get((what, name))
                if lag is not None:
                    told = self._edge(f"{begin}>{end}", log_names[begin], lag, seen)
            edges[f"{begin}>{end}"] = told
        return edges

    def _edge(self, key: str, topic: str, lag: Lag, seen: Measured) -> dict[str, Any]:
        read = [at for (name, _), at in lag.reader.at.items() if name == topic]
        per_s = self._rate(key, topic, sum(read)) if read else None
        places = {place: count for place, count in lag.places.items() if place[0] == topic}
        if lag.records is None or not places:
            return {"per_s": per_s, "lag": _NO_LAG, "time_to_loss_s": None}
        records = sum(places.values())
        sizes = [seen.log.bytes_each(place) for place, count in places.items() if count]
        counts = [count for count in places.values() if count]
        known = [size for size in sizes if size is not None]
        ages = [lag.ages.get(place) for place, count in places.items() if count]
        told = [age for age in ages if age is not None]
        return {
            "per_s": per_s,
            "lag": {
                "records": records,
                "bytes": int(sum(size * count for size, count in zip(known, counts, strict=True)))
                if len(known) == len(sizes)
                else None,
                "seconds": round(max(told, default=0.0), 3) if len(told) == len(ages) else None,
            },
            "time_to_loss_s": _loss_s(lag) if records else None,
        }

    # All of it

    def _mark_causes(self, nodes: dict[str, dict[str, Any]], seen: Measured) -> None:
        workers = []
        for what, parts in (("flow", self._app.flows), ("view", self._app.views)):
            for part in parts:
                key = f"{what}:{part.name}"
                lag = None if seen.trouble else seen.lags.get((what, part.name))
                workers.append(_worker(key, nodes[key], lag))
        self._causes = causes(workers, self._graph.edges, self._causes)
        for one in workers:
            nodes[one.id]["cause"] = one.id in self._causes
            nodes[one.id]["growing"] = one.is_growing and bool(one.records)

    def _facts(
        self,
        live: LiveLook | None,
        seen: Measured,
        nodes: Mapping[str, Mapping[str, Any]],
        alerts: list[dict[str, object]],
    ) -> Facts:
        failures: dict[str, Failure] = {}
        if live is not None:
            failures |= {f"flow {name}": one.failure for name, one in live.flows.items() if one.failure}
            failures |= {f"view {name}": one.failure for name, one in live.views.items() if one.failure}
            failures |= live.failures
        return Facts(
            self._app.name,
            live is not None,
            {flow.name: nodes[flow_id(flow.name)] for flow in self._app.flows},
            {view.name: nodes[view_id(view.name)] for view in self._app.views},
            failures,
            alerts,
            seen.trouble,
            seen.silent_s,
            live.phase if live else "",
        )

    def _rate(self, key: str, what: str, count: int | None) -> float | None:
        """Once for each in a document."""
        if count is None:
            return None
        self._noted.add((key, what))
        found = self._rates.note((key, what), self._clock.steady(), count)
        return None if found is None else round(found.per_s, 3)


def _worker(key: str, node: Mapping[str, Any], lag: Lag | None) -> Worker:
    state = node["state"]
    if state in ("failed", "stopped"):
        return Worker(key, "ended")
    if state in ("starting", "rebuilding") or lag is None or lag.records is None:
        return Worker(key, "starting")
    return Worker(key, "working", lag.records, lag.age_s, lag.arriving_per_s, lag.taken_per_s)


def _noted_state(lag: Lag | None) -> tuple[str, str]:
    if lag is None:
        return "unknown", "the log has not told yet"
    if not lag.reader.known:
        return "unknown", lag.reader.state
    if not lag.reader.begun:
        return "not begun", "the log has nothing of it: headrace run starts it"
    return "unknown", lag.why or _UNTOLD


def _stored_state(lag: Lag | None) -> tuple[str, str]:
    if lag is None:
        return "unknown", "the log has not told yet"
    if not lag.reader.known:
        return "unknown", lag.reader.state
    if not lag.reader.begun:
        return "not built", "its store has nothing of it: headrace run, or headrace view follow, builds it"
    return lag.reader.state, lag.why


def _followed_state(followed: LiveView) -> tuple[str, str]:
    if followed.failure is not None:
        return "failed", followed.failure.text
    return followed.status.state, followed.status.reason


def _on_read() -> dict[str, Any]:
    return {
        "state": "on read",
        "why": "nothing keeps it: it is computed when it is asked for",
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
    told = {"records": lag.records, "bytes": lag.est_bytes, "seconds": age_s}
    return {"lag": told, "time_to_loss_s": _loss_s(lag)}


def _loss_s(lag: Lag) -> float | None:
    return None if lag.loss is None or lag.loss.in_s is None else round(lag.loss.in_s, 3)


def _position(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    of_flow = {"generation": position.generation, "batch": position.batch} if position.generation else {}
    offsets = {str(number): at for number, at in sorted(position.offsets.items())}
    return {"topic": position.topic, **of_flow, "offsets": offsets, "stored_ms": position.stored_ms}


def _ms(us: int | None) -> int | None:
    return None if us is None else us // 1_000
