"""Throughput and CPU of a flow, against the same query written by hand. Both must write the same records. Also the CPU
of an app with many busy flows, against one flow alone: an event that twenty flows read counts twenty times.
"""

from __future__ import annotations

import time
import zlib
from functools import partial

from bench.flow.context import BY_HAND, QUERIES, FlowContext
from bench.flow.pace import watch
from faults.servers.process_tree import cpu_s, pss_mb
from headrace.client.cluster import Cluster
from headrace.client.records import read

__all__ = ["digest", "measure", "measure_idle", "measure_many"]


def measure(context: FlowContext) -> None:
    for query, title in QUERIES.items():
        digests = set()
        for number, who in context.turns():
            name = f"{query}-{who}-{number}"
            task = context.task("flow" if who == "us" else "by-hand", query, name, context.default_topic())
            with context.host.run(task) as running:
                used = partial(cpu_s, running.pid)
                pace = watch(task.settings.checkpoints, context.plan.events, used, running.check)
            context.figures.note(who, f"throughput, {title}", BY_HAND, pace.rate, "events/s")
            row = f"driver's CPU per million events, {title}"
            context.figures.note(who, row, BY_HAND, pace.cpu_s, "CPU s")
            digests.add(digest(context.cluster, name))
        if len(digests) != 1:
            raise SystemExit(f"{title}: the same query wrote different records: {digests}")


def digest(cluster: Cluster, topic: str) -> tuple[int, int]:
    """Return the number of committed records, and the sum of their checksums."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    count = total = 0
    for message in read(cluster, topic, {number: (starts[number], end) for number, end in ends.items()}):
        count += 1
        total += zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b""))
    return count, total


_MANY_GOAL = 0.667
"""The goal: at most one and a half times the CPU of one flow."""


def measure_many(context: FlowContext) -> None:
    plan = context.plan
    shared = context.orders_topic("orders-of-many", plan.flow_events)
    for query, title in QUERIES.items():
        for number, who in context.turns():
            flows = plan.flows if who == "us" else 1
            topic, events = (
                (shared, plan.flow_events) if who == "us" else (context.default_topic(), plan.events)
            )
            task = context.task("flow", query, f"{query}-{flows}-flows-{number}", topic, flows=flows)
            with context.host.run(task) as running:
                used = partial(cpu_s, running.pid)
                pace = watch(task.settings.checkpoints, events * flows, used, running.check, queries=flows)
                memory_mb = pss_mb(running.pid)
            what = f"{plan.flows} flows in one app, {title}"
            row, peer = f"CPU per million events, {what}", "one flow"
            context.figures.note(who, row, peer, pace.cpu_s, "CPU s", _MANY_GOAL)
            context.figures.note(who, f"throughput, {what}", peer, pace.rate, "events/s", None)
            context.figures.note(who, f"driver's memory, {what}", peer, memory_mb, "MB", None)


def measure_idle(context: FlowContext) -> None:
    """Measure the CPU of flows that have processed all events and wait for further ones."""
    plan = context.plan
    topic = context.orders_topic("orders-of-many", plan.flow_events)
    for number, who in context.turns():
        flows = plan.flows if who == "us" else 1
        task = context.task("flow", "large_orders", f"idle-{flows}-flows-{number}", topic, flows=flows)
        with context.host.run(task) as running:
            used = partial(cpu_s, running.pid)
            watch(task.settings.checkpoints, plan.flow_events * flows, used, running.check, queries=flows)
            before, began = used(), time.monotonic()
            time.sleep(plan.small_s)
            cores = (used() - before) / (time.monotonic() - began)
        row = f"CPU per second of an idle flow, {plan.flows} flows in one app"
        context.figures.note(who, row, "the same for one flow", max(cores / flows, 1e-6), "CPU s", None)
