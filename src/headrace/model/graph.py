"""The flows of an app as a graph: their order, and all mistakes of the app at once.

Topics connect flows: one flow writes a topic, others read it. Flows can be ordered only if they form no cycle.
``check`` runs before anything starts. It finds cycles and every other mistake that does not need Spark or the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.declarations import Declared, Flow, writer_of
from headrace.model.errors import AppError, AppMistakes
from headrace.model.mistakes import (
    alert_mistakes,
    flow_mistakes,
    realtime_mistakes,
    topic_mistakes,
    view_mistakes,
)
from headrace.model.names import name_mistakes

__all__ = ["Declared", "check", "downstream", "order", "writer_of"]


def check(app: Declared) -> None:
    """Raise AppMistakes if the app has mistakes. The error has all of them, in the order of the user's lines."""
    mistakes = [*name_mistakes(app)]
    for topic in app.topics:
        mistakes += topic_mistakes(app, topic)
    for flow in app.flows:
        mistakes += flow_mistakes(app, flow)
    for view in (*app.views, *app.computed):
        mistakes += view_mistakes(app, view)
    for alert in app.alerts:
        mistakes += alert_mistakes(app, alert)
    mistakes += realtime_mistakes(app)
    mistakes += map(_cycle_mistake, _sorted(app)[1])
    if mistakes:
        raise AppMistakes(sorted(mistakes, key=_line))


def order(app: Declared) -> tuple[Flow, ...]:
    """Return the flows, each after the flows whose topics it reads, and otherwise in the order of declaration."""
    flows, cycles = _sorted(app)
    if cycles:
        raise AppMistakes([*map(_cycle_mistake, cycles)])
    return tuple(flows)


def downstream(app: Declared, flow: Flow) -> tuple[Flow, ...]:
    """Return the flows that read this flow's output, directly or through other flows, in the order of ``order``."""
    reached = [flow]
    for other in order(app):
        if other is not flow and _writers_of_inputs(other, reached):
            reached.append(other)
    return tuple(reached[1:])


def _sorted(app: Declared) -> tuple[list[Flow], list[list[Flow]]]:
    """Return the ordered flows, and the cycles that were cut to order them. Each cycle lists its flows in the direction
    in which data moves.
    """
    remaining = list(app.flows)
    ordered: list[Flow] = []
    cycles: list[list[Flow]] = []
    while remaining:
        ready = next((flow for flow in remaining if not _writers_of_inputs(flow, remaining)), None)
        if ready is None:
            cycle = _cycle(remaining)
            cycles.append(cycle)
            ready = cycle[0]
        remaining = [flow for flow in remaining if flow is not ready]
        ordered.append(ready)
    return ordered, cycles


def _writers_of_inputs(flow: Flow, candidates: Sequence[Flow]) -> list[Flow]:
    """Return the ``candidates`` that write the flow's inputs. The flow itself is excluded: a flow that reads its own
    output is reported separately.
    """
    return [
        other
        for other in candidates
        if other is not flow and any(topic is other.writes for topic in flow.reads)
    ]


def _cycle(remaining: Sequence[Flow]) -> list[Flow]:
    """Return one cycle. Each remaining flow depends on another, so following the inputs finds a cycle."""
    path = [remaining[0]]
    while True:
        writer = _writers_of_inputs(path[-1], remaining)[0]
        for index, flow in enumerate(path):
            if flow is writer:
                cycle = path[index:][::-1]
                # Start with the flow that was declared first.
                first = min(range(len(cycle)), key=lambda index: _index(remaining, cycle[index]))
                return cycle[first:] + cycle[:first]
        path.append(writer)


def _index(flows: Sequence[Flow], flow: Flow) -> int:
    return next(index for index, other in enumerate(flows) if other is flow)


def _cycle_mistake(cycle: list[Flow]) -> AppError:
    path_text = " → ".join(f"{flow.name} → {flow.writes.name}" for flow in cycle)
    return AppError(
        f"flow {cycle[0].name!r} reads a topic that is derived from its own output:"
        f" {cycle[-1].writes.name} → {path_text}",
        location=cycle[0].location,
        code="HR-APP-CYCLE",
        hint="flows cannot form a cycle: remove one of these topics from the reads of the next flow",
    )


def _line(mistake: AppError) -> tuple[str, int]:
    return (mistake.location.file, mistake.location.line) if mistake.location else ("", 0)
