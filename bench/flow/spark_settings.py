"""Spark settings on one machine, tried one by one on the window aggregation, each against the default.

Each try is one driver. First it catches up with a full topic (throughput, CPU per event). Then events arrive slowly
(duration of a small batch, and the CPU to keep up).

``measure_cluster`` does the same on a Spark cluster: a master and two workers on this machine. The figures include the
cost of each partition, state store and trigger, but not the cost of a network or of remote checkpoints. CPU is that of
the driver and of everything that the cluster runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.flow.context import FlowContext
from bench.flow.host import Host, ProcessHost, RunningTask
from bench.flow.pace import watch
from bench.flow.slow_orders import trickle
from bench.flow.trigger_profile import TOTAL, means, read_triggers
from faults.servers.process_tree import cpu_s, pss_mb
from faults.servers.spark_cluster import SparkCluster

__all__ = ["Try", "TuningFigures", "measure", "measure_cluster", "measure_tries"]

_QUERY = "per_minute"
_SNAPSHOT_PER_BATCH = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false"}
_SHARED_MEMORY_LIMIT = {
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "256",
}
_SPARK_WRITE_BUFFERS = {
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "-1",
    "spark.sql.streaming.stateStore.rocksdb.maxWriteBufferNumber": "-1",
}


@dataclass(frozen=True, slots=True)
class Try:
    name: str
    spark: dict[str, Any] = field(default_factory=dict)
    trigger_ms: int = 0


@dataclass(frozen=True, slots=True)
class TuningFigures:
    rate: float
    cpu_s: float
    trigger_ms: float
    minute_cpu_s: float
    memory_mb: float


_DEFAULT = Try("the default: as many partitions of state as cores, in memory, no pause")
_TRIES = (
    *(Try(f"{count} partitions of state", {"shuffle_partitions": count}) for count in (1, 2, 4, 8, 200)),
    Try("RocksDB as we set it", {"state": "rocksdb"}),
    Try("RocksDB, a snapshot for each batch", {"state": "rocksdb", "conf": _SNAPSHOT_PER_BATCH}),
    Try("RocksDB, 256 MB for all stores", {"state": "rocksdb", "conf": _SHARED_MEMORY_LIMIT}),
    Try("RocksDB, Spark's own write buffers", {"state": "rocksdb", "conf": _SPARK_WRITE_BUFFERS}),
    Try("a trigger every 200 ms", trigger_ms=200),
    Try("a trigger every 1,000 ms", trigger_ms=1_000),
    Try("half the heap", {"driver_memory": "512m"}),
    Try("twice the heap", {"driver_memory": "2g"}),
)


def measure(context: FlowContext) -> None:
    tries = _TRIES[:2] + _TRIES[5:7] if context.plan.is_quick else _TRIES
    measure_tries(context, context.host, _DEFAULT, tries, "one machine", [])


def measure_tries(
    context: FlowContext, host: Host, default: Try, tries: Sequence[Try], where: str, pids: Sequence[int]
) -> None:
    """Measure the default and each try, and compare each try with the default. ``pids``: other measured processes."""
    measured = []
    for number, attempt in enumerate((default, *tries)):
        measured.append((attempt, _figures(context, host, attempt, f"{where}-{number}", pids)))
        print(f"  {where}, {attempt.name}: {measured[-1][1]}", flush=True)
    (_, default_figures), *others = measured
    events, rate = "window aggregation", context.plan.rate
    for other, figures in others:
        what, peer, note = f"{where}, {other.name}", default.name, context.figures.add_comparison
        note(f"throughput, {events}; {what}", peer, figures.rate, default_figures.rate, "events/s", None)
        note(
            f"CPU per million events, {events}; {what}",
            peer,
            figures.cpu_s,
            default_figures.cpu_s,
            "CPU s",
            None,
        )
        row = f"a small batch, {events}; {what}"
        note(row, peer, figures.trigger_ms, default_figures.trigger_ms, "ms", None)
        row = f"CPU for a minute of {rate}/s, {events}; {what}"
        note(row, peer, figures.minute_cpu_s, default_figures.minute_cpu_s, "CPU s", None)
        note(f"memory, {events}; {what}", peer, figures.memory_mb, default_figures.memory_mb, "MB", None)


def _figures(context: FlowContext, host: Host, attempt: Try, name: str, pids: Sequence[int]) -> TuningFigures:
    plan = context.plan
    topic = context.orders_topic("orders-of-tries", plan.events // 2)
    # Every try adds a few events.
    events = sum(context.cluster.ends(topic).values())
    task = context.task(
        "flow",
        _QUERY,
        name.replace(" ", "-"),
        topic,
        batch_events=min(plan.batch_events, plan.events // 20),
        trigger_ms=attempt.trigger_ms,
        profiled=True,
        spark=attempt.spark,
    )
    cpu_samples: list[float] = []

    def cpu_used(running: RunningTask) -> float:
        return cpu_s(running.pid, *pids)

    with host.run(task) as running:
        cpu_now = partial(cpu_used, running)
        checkpoints = task.settings.checkpoints
        pace = watch(checkpoints, events, cpu_now, running.check)
        trickle(
            context.cluster,
            topic,
            checkpoints,
            running.check,
            rate=plan.rate,
            warm_s=plan.small_s / 2,
            seconds=plan.small_s,
            on_start=lambda: cpu_samples.append(cpu_now()),
        )
        cpu_samples.append(cpu_now())
        memory_mb = pss_mb(running.pid, *pids)
    small = [trigger for trigger in read_triggers(task.triggers_file) if trigger.batch > pace.batch]
    whole_ms = means(small[len(small) // 3 :])[TOTAL]
    minute_s = (cpu_samples[1] - cpu_samples[0]) * 60 / plan.small_s
    return TuningFigures(pace.rate, pace.cpu_s, whole_ms, max(0.01, minute_s), memory_mb)


def measure_cluster(context: FlowContext) -> None:
    with contextlib.closing(SparkCluster(context.home / "spark-cluster")) as cluster:
        base = {
            "master": cluster.master,
            "secret_file": cluster.secret_file,
            "conf": {"spark.executor.memory": "512m"},
        }

        def cluster_try(name: str, **spark: object) -> Try:
            return Try(name, {**base, **spark})

        tries = [
            *(
                cluster_try(
                    f"{count} partitions of state in RocksDB", state="rocksdb", shuffle_partitions=count
                )
                for count in (2, 4, 16, 200)
            ),
            cluster_try("4 partitions of state in memory", state="memory", shuffle_partitions=4),
        ]
        default = cluster_try("the default of a cluster")
        with_pause = Try("a trigger every 1,000 ms", default.spark, trigger_ms=1_000)
        tries_to_run = tries[:1] if context.plan.is_quick else [*tries, with_pause]
        # Only a driver in its own process can have another master.
        measure_tries(context, ProcessHost(), default, tries_to_run, "a cluster", cluster.pids)
