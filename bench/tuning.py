"""Settings of Spark on one machine, tried one by one on the window aggregation, each beside the default.

A try is one driver: first it catches up with a topic that is full (throughput, CPU per event), then events come slowly
(how long a small batch takes, and what keeping up with them costs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.host import Host, Hosted
from bench.pace import watch
from bench.process_tree import cpu_s, pss_mb
from bench.profile import TOTAL, means, read_triggers
from bench.stand import Stand
from bench.trickle import trickle

__all__ = ["Figures", "Try", "measure", "measure_tries"]

_QUERY = "per_minute"
_SNAPSHOTS = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"}
_ONE_BOUND = {
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
}
_SPARKS_BUFFERS = {
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "-1",
    "spark.sql.streaming.stateStore.rocksdb.maxWriteBufferNumber": "-1",
}


@dataclass(frozen=True, slots=True)
class Try:
    name: str
    spark: dict[str, Any] = field(default_factory=dict)
    trigger_ms: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    rate: float
    cpu_s: float
    trigger_ms: float
    minute_cpu_s: float
    memory_mb: float


_DEFAULT = Try("the default: as many partitions of state as cores, in memory, no pause")
_TRIES = (
    *(Try(f"{count} partitions of state", {"shuffle_partitions": count}) for count in (1, 2, 4, 8, 200)),
    Try("RocksDB as we set it", {"state": "rocksdb"}),
    Try("RocksDB, a snapshot for each batch", {"state": "rocksdb", "conf": _SNAPSHOTS}),
    Try("RocksDB, 256 MB for all stores", {"state": "rocksdb", "conf": _ONE_BOUND}),
    Try("RocksDB, Spark's own write buffers", {"state": "rocksdb", "conf": _SPARKS_BUFFERS}),
    Try("a trigger every 200 ms", trigger_ms=200),
    Try("a trigger every 1,000 ms", trigger_ms=1_000),
    Try("half the heap", {"driver_memory": "512m"}),
    Try("twice the heap", {"driver_memory": "2g"}),
)


def measure(stand: Stand) -> None:
    tries = _TRIES[:2] + _TRIES[5:7] if stand.plan.is_quick else _TRIES
    measure_tries(stand, stand.host, _DEFAULT, tries, "one machine", [])


def measure_tries(
    stand: Stand, host: Host, default: Try, tries: Sequence[Try], where: str, pids: Sequence[int]
) -> None:
    """``pids`` are processes beside the driver whose work counts."""
    found = []
    for at, one in enumerate((default, *tries)):
        found.append((one, _figures(stand, host, one, f"{where}-{at}", pids)))
        print(f"  {where}, {one.name}: {found[-1][1]}", flush=True)
    (_, usual), *others = found
    events, rate = "window aggregation", stand.plan.rate
    for one, figures in others:
        what, peer, note = f"{where}, {one.name}", default.name, stand.measured.both
        note(f"throughput, {events}; {what}", peer, figures.rate, usual.rate, "events/s", None)
        note(f"CPU per million events, {events}; {what}", peer, figures.cpu_s, usual.cpu_s, "CPU s", None)
        row = f"a small batch, {events}; {what}"
        note(row, peer, figures.trigger_ms, usual.trigger_ms, "ms", None)
        row = f"CPU for a minute of {rate}/s, {events}; {what}"
        note(row, peer, figures.minute_cpu_s, usual.minute_cpu_s, "CPU s", None)
        note(f"memory, {events}; {what}", peer, figures.memory_mb, usual.memory_mb, "MB", None)


def _figures(stand: Stand, host: Host, one: Try, name: str, pids: Sequence[int]) -> Figures:
    plan = stand.plan
    topic = stand.filled("orders-of-tries", plan.events // 2)
    # Every try adds a few.
    events = sum(stand.cluster.ends(topic).values())
    task = stand.task(
        "flow",
        _QUERY,
        name.replace(" ", "-"),
        topic,
        at_once=min(plan.at_once, plan.events // 20),
        trigger_ms=one.trigger_ms,
        profiled=True,
        spark=one.spark,
    )
    used: list[float] = []

    def used_by(running: Hosted) -> float:
        return cpu_s(running.pid, *pids)

    with host.run(task) as running:
        now = partial(used_by, running)
        checkpoints = task.settings.checkpoints
        pace = watch(checkpoints, events, now, running.check)
        trickle(
            stand.cluster,
            topic,
            checkpoints,
            running.check,
            rate=plan.rate,
            warm_s=plan.small_s / 2,
            seconds=plan.small_s,
            begun=lambda: used.append(now()),
        )
        used.append(now())
        memory_mb = pss_mb(running.pid, *pids)
    small = [one for one in read_triggers(task.triggers_file) if one.batch > pace.batch]
    whole_ms = means(small[len(small) // 3 :])[TOTAL]
    minute_s = (used[1] - used[0]) * 60 / plan.small_s
    return Figures(pace.rate, pace.cpu_s, whole_ms, max(0.01, minute_s), memory_mb)
