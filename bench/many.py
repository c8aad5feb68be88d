"""What an event costs when one app has many flows, all of them busy, beside what it costs one flow alone.

An event that twenty flows read counts twenty times: once for each.
"""

from __future__ import annotations

from functools import partial

from bench.pace import watch
from bench.process_tree import cpu_s, pss_mb
from bench.stand import QUERIES, Stand

__all__ = ["measure"]

_GOAL = 0.667
"""At most one and a half times as much."""


def measure(stand: Stand) -> None:
    plan = stand.plan
    shared = stand.filled("orders-of-many", plan.flow_events)
    for query, title in QUERIES.items():
        for number, who in stand.turns():
            flows = plan.flows if who == "us" else 1
            topic, events = (shared, plan.flow_events) if who == "us" else (stand.orders(), plan.events)
            task = stand.task("flow", query, f"{query}-{flows}-flows-{number}", topic, flows=flows)
            with stand.host.run(task) as running:
                used = partial(cpu_s, running.pid)
                pace = watch(task.settings.checkpoints, events * flows, used, running.check, queries=flows)
                memory_mb = pss_mb(running.pid)
            what = f"{plan.flows} flows in one app, {title}"
            row, peer = f"CPU per million events, {what}", "one flow"
            stand.measured.note(who, row, peer, pace.cpu_s, "CPU s", _GOAL)
            stand.measured.note(who, f"throughput, {what}", peer, pace.rate, "events/s", None)
            stand.measured.note(who, f"driver's memory, {what}", peer, memory_mb, "MB", None)
