"""Throughput and CPU of a flow, beside the same query written by hand; both must have written the same records."""

from __future__ import annotations

from functools import partial

from bench.digest import digest
from bench.pace import watch
from bench.process_tree import cpu_s
from bench.stand import BY_HAND, QUERIES, Stand

__all__ = ["measure"]


def measure(stand: Stand) -> None:
    for query, title in QUERIES.items():
        found = set()
        for number, who in stand.turns():
            name = f"{query}-{who}-{number}"
            task = stand.task("flow" if who == "us" else "by-hand", query, name, stand.orders())
            with stand.host.run(task) as running:
                used = partial(cpu_s, running.pid)
                pace = watch(task.settings.checkpoints, stand.plan.events, used, running.check)
            stand.measured.note(who, f"throughput, {title}", BY_HAND, pace.rate, "events/s")
            row = f"driver's CPU per million events, {title}"
            stand.measured.note(who, row, BY_HAND, pace.cpu_s, "CPU s")
            found.add(digest(stand.cluster, name))
        if len(found) != 1:
            raise SystemExit(f"{title}: the same query has given different records: {found}")
