"""How far behind an app's flows and views are: in records, in batches where there are any, and in time.

Flows are asked of the log, whoever runs them; views of their stores. Being late is no fault: what a view serves is
always the state after some batch. How late it is must be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.lookup import Bounds
from headrace.cli.session import Session
from headrace.cli.settings import cluster_of
from headrace.cli.standing import Standing, age_of_next
from headrace.cli.view.stored import known_parts, state_of
from headrace.client.errors import TopicMissing
from headrace.client.flow_lag import reached
from headrace.client.progress_log import Progress, current
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.model.flow import Flow
    from headrace.model.view import View

__all__ = ["Late", "lateness"]


@dataclass(frozen=True, slots=True)
class Late:
    """``lag`` is None where it cannot be said; then ``state`` says why."""

    what: str
    name: str
    state: str
    generation: int | None = None
    batch: int | None = None
    batches: int | None = None
    """That the flow has committed and the view does not have yet."""
    lag: int | None = None
    gone: int = 0
    age_s: float | None = None

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


def lateness(session: Session, app: App, data: Path) -> list[Late]:
    """Of every flow, and then of every view."""
    cluster = cluster_of(session)
    progress = {flow.name: current(cluster, flow.progress_topic) for flow in app.flows}
    found = [_flow(session, cluster, flow, progress[flow.name]) for flow in app.flows]
    for view in app.views:
        writer = app.writer_of(view.topic)
        found.append(_view(session, cluster, app, view, progress[writer.name] if writer else None, data))
    return found


def _flow(session: Session, cluster: Cluster, flow: Flow, progress: Progress | None) -> Late:
    if progress is None:
        return Late("flow", flow.name, "not begun")
    places: list[Standing] = []
    generation, last = progress.generation, progress.last
    for one in generation.inputs:
        if one.kind == "events":
            places += _places(cluster, f"flow {flow.name}", one.log, reached(one, last))
    return Late(
        "flow",
        flow.name,
        _state(places, "begun"),
        generation.generation,
        last.batch if last else None,
        None,
        *_behind(session, places),
    )


def _view(
    session: Session, cluster: Cluster, app: App, view: View, progress: Progress | None, data: Path
) -> Late:
    parts = known_parts(app, view, data)
    state, serving = state_of(parts), parts.get("serving")
    if serving is None:
        return Late("view", view.name, state)
    if not serving.generation:
        places = list(_places(cluster, f"view {view.name}", serving.topic, serving.offsets))
        return Late("view", view.name, _state(places, state), None, None, None, *_behind(session, places))
    if progress is None or progress.generation.generation != serving.generation:
        newest = "none" if progress is None else progress.generation.generation
        why = f"{state}; the flow's generation is {newest}"
        return Late("view", view.name, why, serving.generation, serving.batch)
    newest_batch = progress.last.batch if progress.last else -1
    batches = max(0, newest_batch - serving.batch)
    places = list(_places(cluster, f"view {view.name}", serving.topic, serving.offsets)) if batches else []
    # Behind the last batch there is nothing but the end of its transaction, which is no record.
    lag, gone, age_s = _behind(session, places) if batches else (0, 0, 0.0)
    return Late("view", view.name, state, serving.generation, serving.batch, batches, lag, gone, age_s)


def _places(cluster: Cluster, who: str, topic: str, offsets: Mapping[int, int]) -> Iterator[Standing]:
    try:
        starts, ends = cluster.starts(topic), cluster.ends(topic)
    except TopicMissing:
        yield Standing(who, topic, 0, None, None)
        return
    for number, end in ends.items():
        yield Standing(who, topic, number, offsets.get(number, 0), Bounds(starts[number], end))


def _state(places: list[Standing], otherwise: str) -> str:
    missing = sorted({one.topic for one in places if one.bounds is None})
    return f"topic {missing[0]} is not there" if missing else otherwise


def _behind(session: Session, places: list[Standing]) -> tuple[int | None, int, float | None]:
    """Records to read, records that were deleted before, and how long ago the oldest to read was written."""
    if any(one.lag is None for one in places):
        return None, sum(one.gone for one in places), None
    ages = age_of_next(session, places, SystemClock().now_ms()).values()
    known = [age for age in ages if age is not None]
    age = max(known, default=0.0) if len(known) == len(places) else None
    return sum(one.lag or 0 for one in places), sum(one.gone for one in places), age
