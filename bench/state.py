"""What an event costs while the state of a flow grows: an aggregation over all time, at each of several sizes.

One run of one flow. Its topic holds, for each size, orders that bring keys until there are as many, and then orders of
a single key each, any of those that are there: only these count. The same is done with state in RocksDB, which is what
large state is for, and with state in memory as far as that is meant to reach. Beside the CPU there is what a batch
spends on committing its state, and how much memory the driver has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from bench.orders import keys_event, produce
from bench.pace import Mark, cost, marks
from bench.process_tree import cpu_s, pss_mb
from bench.profile import means, read_triggers
from bench.stand import Stand

__all__ = ["Stage", "events_of", "measure", "stages"]

_AT_ONCE = 10
"""Keys that an order brings while state is filled."""
_GOAL = 0.8
_TIMEOUT_S = 1_800.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One size: where its events lie in the whole."""

    keys: int
    low: int
    high: int


def stages(sizes: Sequence[int], events: int) -> list[Stage]:
    found: list[Stage] = []
    done = there = 0
    for keys in sizes:
        done += -(-(keys - there) // _AT_ONCE)
        found.append(Stage(keys, done, done + events))
        done, there = done + events, keys
    return found


def events_of(sizes: Sequence[int], events: int) -> Iterator[tuple[bytes, bytes]]:
    rng = random.Random(1)
    at = datetime.now(UTC) - timedelta(hours=1)
    number = there = 0
    for keys in sizes:
        for first in range(there, keys, _AT_ONCE):
            yield keys_event(number, first, min(_AT_ONCE, keys - first), at)
            number += 1
        for _ in range(events):
            yield keys_event(number, rng.randrange(keys), 1, at)
            number += 1
        there = keys


def measure(stand: Stand) -> None:
    plan = stand.plan
    produce(stand.cluster, "keys", events_of(plan.state_keys, plan.state_events), plan.partitions)
    _measure(stand, "rocksdb", plan.state_keys)
    small = [keys for keys in plan.state_keys if keys <= plan.state_memory_keys]
    produce(stand.cluster, "fewer-keys", events_of(small, plan.state_events), plan.partitions)
    _measure(stand, "memory", small)


def _measure(stand: Stand, store: str, sizes: Sequence[int]) -> None:
    plan = stand.plan
    topic = "keys" if store == "rocksdb" else "fewer-keys"
    task = stand.task(
        "flow",
        "per_key",
        f"keys-{store}",
        topic,
        at_once=plan.state_at_once,
        profiled=True,
        spark={"state": store},
    )
    listed = stages(sizes, plan.state_events)
    seen: list[Mark] = []
    memory_mb: dict[int, float] = {}
    with stand.host.run(task) as running:
        used = partial(cpu_s, running.pid)
        for mark in marks(
            task.settings.checkpoints, listed[-1].high, used, running.check, timeout_s=_TIMEOUT_S
        ):
            seen.append(mark)
            for stage in listed:
                if mark.done >= stage.high and stage.keys not in memory_mb:
                    memory_mb[stage.keys] = pss_mb(running.pid)
    triggers = {one.batch: one for one in read_triggers(task.triggers_file)}
    first, *others = listed
    costs = {stage.keys: cost(seen, stage.low, stage.high) for stage in listed}
    parts = {
        stage.keys: means([triggers[batch] for batch in costs[stage.keys].batches if batch in triggers])
        for stage in listed
    }
    title = "RocksDB" if store == "rocksdb" else "memory"
    peer = f"{first.keys:,} keys"
    # Only RocksDB is meant for state that grows.
    goal = _GOAL if store == "rocksdb" else None
    for stage in others:
        where = f"{stage.keys:,} keys of state in {title}"
        us, them = costs[stage.keys], costs[first.keys]
        note = stand.measured.both
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
