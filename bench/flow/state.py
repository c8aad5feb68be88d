"""The cost of an event while the state of a flow grows: an aggregation over all time, at several sizes.

A run has one flow. For each size, the flow's topic has orders that add keys up to that size, and then orders with one
existing key each. Only the orders with an existing key are counted. There is one run with state in RocksDB, which is
meant for large state, and one with state in memory, up to a limit. A run also measures the time to commit the state,
and the driver's memory.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from bench.flow.context import FlowContext
from bench.flow.orders import keys_event, produce
from bench.flow.pace import Mark, cost, marks
from bench.flow.trigger_profile import means, read_triggers
from faults.servers.process_tree import cpu_s, pss_mb

__all__ = ["Stage", "events_of", "measure", "stages"]

_KEYS_PER_ORDER = 10
"""Keys per order while the state is filled."""
_GOAL = 0.8
_TIMEOUT_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One size of the state. ``low`` and ``high`` are the range of its counted events in the whole input."""

    keys: int
    low: int
    high: int


def stages(sizes: Sequence[int], events: int) -> list[Stage]:
    stages: list[Stage] = []
    done = reached = 0
    for keys in sizes:
        done += -(-(keys - reached) // _KEYS_PER_ORDER)
        stages.append(Stage(keys, done, done + events))
        done, reached = done + events, keys
    return stages


def events_of(sizes: Sequence[int], events: int) -> Iterator[tuple[bytes, bytes]]:
    rng = random.Random(1)
    at = datetime.now(UTC) - timedelta(hours=1)
    number = reached = 0
    for keys in sizes:
        for first in range(reached, keys, _KEYS_PER_ORDER):
            yield keys_event(number, first, min(_KEYS_PER_ORDER, keys - first), at)
            number += 1
        for _ in range(events):
            yield keys_event(number, rng.randrange(keys), 1, at)
            number += 1
        reached = keys


def measure(context: FlowContext) -> None:
    plan = context.plan
    produce(context.cluster, "keys", events_of(plan.state_keys, plan.state_events), plan.partitions)
    _measure(context, "rocksdb", plan.state_keys)
    small = [keys for keys in plan.state_keys if keys <= plan.state_memory_keys]
    produce(context.cluster, "fewer-keys", events_of(small, plan.state_events), plan.partitions)
    _measure(context, "memory", small)


def _measure(context: FlowContext, store: str, sizes: Sequence[int]) -> None:
    plan = context.plan
    topic = "keys" if store == "rocksdb" else "fewer-keys"
    task = context.task(
        "flow",
        "per_key",
        f"keys-{store}",
        topic,
        batch_events=plan.state_batch_events,
        profiled=True,
        spark={"state": store},
    )
    all_stages = stages(sizes, plan.state_events)
    batch_marks: list[Mark] = []
    memory_mb: dict[int, float] = {}
    disk_mb: dict[int, float] = {}
    with context.host.run(task) as running:
        used = partial(cpu_s, running.pid)
        for mark in marks(
            task.settings.checkpoints, all_stages[-1].high, used, running.check, timeout_s=_TIMEOUT_S
        ):
            batch_marks.append(mark)
            for stage in all_stages:
                if mark.done >= stage.high and stage.keys not in memory_mb:
                    memory_mb[stage.keys] = pss_mb(running.pid)
                    disk_mb[stage.keys] = _disk_mb(task.settings.checkpoints)
    triggers = {trigger.batch: trigger for trigger in read_triggers(task.triggers_file)}
    first, *others = all_stages
    costs = {stage.keys: cost(batch_marks, stage.low, stage.high) for stage in all_stages}
    parts = {
        stage.keys: means([triggers[batch] for batch in costs[stage.keys].batches if batch in triggers])
        for stage in all_stages
    }
    title = "RocksDB" if store == "rocksdb" else "memory"
    peer = f"{first.keys:,} keys"
    # Only RocksDB is meant for growing state.
    goal = _GOAL if store == "rocksdb" else None
    for stage in others:
        where = f"{stage.keys:,} keys of state in {title}"
        us, them = costs[stage.keys], costs[first.keys]
        note = context.figures.add_comparison
        note(f"CPU per million events, {where}", peer, us.cpu_s, them.cpu_s, "CPU s", goal)
        note(f"throughput, {where}", peer, us.rate, them.rate, "events/s", None)
        for part in ("state commit", "checkpoint files", "triggerExecution"):
            note(
                f"{part} of a batch, {where}",
                peer,
                max(0.1, parts[stage.keys][part]),
                max(0.1, parts[first.keys][part]),
                "ms",
                None,
            )
        note(f"driver's memory, {where}", peer, memory_mb[stage.keys], memory_mb[first.keys], "MB", None)
        note(f"checkpoint on disk, {where}", peer, disk_mb[stage.keys], disk_mb[first.keys], "MB", None)


def _disk_mb(folder: Path) -> float:
    """Return the size of all files. Spark may remove old files meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return max(0.001, size / 1e6)
