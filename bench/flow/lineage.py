"""The cost of carrying the coordinates of each row: a flow against the same flow without coordinates.

The coordinates name the input record from which a row was derived. Without them, the order of rows is undefined. The
results are correct here nevertheless, because the query writes one row per key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from bench.flow.context import QUERIES, FlowContext
from bench.flow.pace import watch
from bench.flow.throughput import digest
from faults.patch import patched
from faults.servers.process_tree import cpu_s

__all__ = ["UNTRACED", "measure", "untraced"]

UNTRACED = "flow-untraced"
_PEER = "the same flow, without coordinates"
_GOAL = 0.95


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Flows that start in this block do not carry the coordinates of their rows."""
    from headrace.flow.compile import lineage
    from headrace.flow.engine import micro_batch as running

    def without(flow, frames):  # type: ignore[no-untyped-def]
        return flow.function(*lineage.without_lineage(frames))

    with patched(running, "trace", without):
        yield


def measure(context: FlowContext) -> None:
    for query, title in QUERIES.items():
        digests = set()
        for number, who in context.turns():
            name = f"lineage-{query}-{who}-{number}"
            task = context.task("flow" if who == "us" else UNTRACED, query, name, context.default_topic())
            with context.host.run(task) as running:
                used = partial(cpu_s, running.pid)
                pace = watch(task.settings.checkpoints, context.plan.events, used, running.check)
            context.figures.note(
                who, f"throughput with coordinates, {title}", _PEER, pace.rate, "events/s", _GOAL
            )
            row = f"driver's CPU per million events with coordinates, {title}"
            context.figures.note(who, row, _PEER, pace.cpu_s, "CPU s", _GOAL)
            digests.add(digest(context.cluster, name))
        if len(digests) != 1:
            raise SystemExit(f"{title}: the same flow wrote different records: {digests}")
