"""Time for a stateful flow to catch up after kill -9, against the same flow with a tenth of the history.

The state is in the checkpoint, so the flow reads only the records after the checkpoint, however long the topic is. The
time is measured from the command, including the start of a JVM, to the progress record that covers the last record.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from bench.flow.context import FlowContext
from bench.flow.driver import Task
from bench.flow.orders import event, produce
from bench.flow.start_up import until
from headrace.client.cluster import Cluster
from headrace.client.progress import current

__all__ = ["measure"]

_ROW = "restart after kill -9 until the backlog is processed, window aggregation"
_PEER = "the same flow with a tenth of the history"
_HISTORY_RATIO = 10
_UNREAD = 20_000
_GOAL = 0.8


def measure(context: FlowContext) -> None:
    for number, who in context.turns():
        history = context.plan.events if who == "us" else context.plan.events // _HISTORY_RATIO
        name = f"recovery-{who}-{number}"
        task = context.task("flow", "per_minute", name, context.orders_topic(f"{name}-orders", history))
        task.data.mkdir(parents=True)
        _run(task, history)
        produce(context.cluster, task.topic, _recent(history, _UNREAD), context.plan.partitions)
        context.figures.note(who, _ROW, _PEER, _run(task, history + _UNREAD), "s", _GOAL)


def _run(task: Task, records: int) -> float:
    """Start the driver, and kill it when it has processed this many records. Return the seconds that this took."""
    output, cluster = task.data / f"driver-{records}.out", Cluster(task.bootstrap)
    began = time.monotonic()
    with open(output, "wb") as out:
        process = subprocess.Popen(
            task.command(), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        until(
            process,
            output,
            lambda: _records_derived(cluster, f"bench-{task.output}.{task.output}-flow.progress") >= records,
        )
        return time.monotonic() - began
    finally:
        process.kill()
        process.wait()


def _records_derived(cluster: Cluster, progress: str) -> int:
    progress_read = current(cluster, progress)
    if progress_read is None or progress_read.last is None:
        return 0
    return sum(to for ranges in progress_read.last.inputs.values() for _, to in ranges.values())


def _recent(first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    now = datetime.now(UTC)
    for number in range(count):
        yield event(first + number, now - timedelta(milliseconds=count - number))
