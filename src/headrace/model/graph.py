"""An app as a whole: which flow follows from which, and all of its mistakes at once.

Flows meet at topics: one writes it, others read it. There is an order in which all can be derived only if nothing
leads back to itself; that, and everything else that can be known without Spark and without a log, ``check`` makes sure
of before anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.alert_mistakes import alert_mistakes
from headrace.model.declared import Declared, writer_of
from headrace.model.errors import AppError, AppMistakes
from headrace.model.flow import Flow
from headrace.model.name_mistakes import name_mistakes
from headrace.model.part_mistakes import flow_mistakes, topic_mistakes, view_mistakes
from headrace.model.realtime_mistakes import realtime_mistakes

__all__ = ["Declared", "check", "downstream", "order", "writer_of"]


def check(app: Declared) -> None:
    """Raises AppMistakes, with every mistake in the order of the user's lines."""
    found = [*name_mistakes(app)]
    for topic in app.topics:
        found += topic_mistakes(app, topic)
    for flow in app.flows:
        found += flow_mistakes(app, flow)
    for view in (*app.views, *app.computed):
        found += view_mistakes(app, view)
    for alert in app.alerts:
        found += alert_mistakes(app, alert)
    found += realtime_mistakes(app)
    found += map(_round_trip, _sorted(app)[1])
    if found:
        raise AppMistakes(sorted(found, key=_line))


def order(app: Declared) -> tuple[Flow, ...]:
    """Every flow behind those whose topics it reads; otherwise as declared."""
    flows, rounds = _sorted(app)
    if rounds:
        raise AppMistakes([*map(_round_trip, rounds)])
    return tuple(flows)


def downstream(app: Declared, flow: Flow) -> tuple[Flow, ...]:
    """The flows that derive from what this one derives, directly or through others, in their order."""
    moved = [flow]
    for one in order(app):
        if one is not flow and _before(one, moved):
            moved.append(one)
    return tuple(moved[1:])


def _sorted(app: Declared) -> tuple[list[Flow], list[list[Flow]]]:
    """The flows in order, and the circles that had to be cut for it, each in the direction of its data."""
    waiting = list(app.flows)
    done: list[Flow] = []
    rounds: list[list[Flow]] = []
    while waiting:
        ready = next((flow for flow in waiting if not _before(flow, waiting)), None)
        if ready is None:
            circle = _circle(waiting)
            rounds.append(circle)
            ready = circle[0]
        waiting = [flow for flow in waiting if flow is not ready]
        done.append(ready)
    return done, rounds


def _before(flow: Flow, among: Sequence[Flow]) -> list[Flow]:
    """Those that write what it reads; that it may read its own output is another mistake."""
    return [one for one in among if one is not flow and any(topic is one.writes for topic in flow.reads)]


def _circle(waiting: Sequence[Flow]) -> list[Flow]:
    """Each of them waits for another, so going back from any one must come by the same flow again."""
    way = [waiting[0]]
    while True:
        back = _before(way[-1], waiting)[0]
        for at, flow in enumerate(way):
            if flow is back:
                circle = way[at:][::-1]
                # It begins with the one that was declared first.
                first = min(range(len(circle)), key=lambda at: _index(waiting, circle[at]))
                return circle[first:] + circle[:first]
        way.append(back)


def _index(flows: Sequence[Flow], flow: Flow) -> int:
    return next(at for at, one in enumerate(flows) if one is flow)


def _round_trip(circle: list[Flow]) -> AppError:
    way = " → ".join(f"{flow.name} → {flow.writes.name}" for flow in circle)
    return AppError(
        f"what flow {circle[0].name!r} derives comes back to it: {circle[-1].writes.name} → {way}",
        place=circle[0].place,
        code="HR-APP-CYCLE",
        hint="data moves one way: take one of these topics out of the reads of the flow behind it",
    )


def _line(mistake: AppError) -> tuple[str, int]:
    return (mistake.place.file, mistake.place.line) if mistake.place else ("", 0)
