"""What carrying the coordinates of each row costs: a flow beside the same flow without them.

Without them rows would come in whatever order Spark hands them over; the flow is right all the same here, since each
key of the query has one row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from unittest import mock

from bench.digest import digest
from bench.pace import watch
from bench.process_tree import cpu_s
from bench.stand import QUERIES, Stand

__all__ = ["UNTRACED", "measure", "untraced"]

UNTRACED = "flow-untraced"
_PEER = "the same flow, without coordinates"
_GOAL = 0.95


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Flows that start here carry no coordinates."""
    from headrace.flow import lineage, running

    def without(flow, frames):  # type: ignore[no-untyped-def]
        return flow.function(*lineage.without_lineage(frames))

    with mock.patch.object(running, "trace", without):
        yield


def measure(stand: Stand) -> None:
    for query, title in QUERIES.items():
        found = set()
        for number, who in stand.turns():
            name = f"lineage-{query}-{who}-{number}"
            task = stand.task("flow" if who == "us" else UNTRACED, query, name, stand.orders())
            with stand.host.run(task) as running:
                used = partial(cpu_s, running.pid)
                pace = watch(task.settings.checkpoints, stand.plan.events, used, running.check)
            stand.measured.note(
                who, f"throughput with coordinates, {title}", _PEER, pace.rate, "events/s", _GOAL
            )
            row = f"driver's CPU per million events with coordinates, {title}"
            stand.measured.note(who, row, _PEER, pace.cpu_s, "CPU s", _GOAL)
            found.add(digest(stand.cluster, name))
        if len(found) != 1:
            raise SystemExit(f"{title}: the same flow has given different records: {found}")
