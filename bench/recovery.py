"""How long a flow with state takes to catch up after kill -9, beside the same flow with a tenth of the history.

Its state is in its checkpoint: what it has to read is what came since, however long the stream is. Counted is from the
command, with the start of a JVM in it, to the progress record that has the last of the records that came meanwhile.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from bench.driver import Task
from bench.orders import event, produce
from bench.stand import Stand
from bench.start_up import until
from headrace.client.cluster import Cluster
from headrace.client.progress_log import current

__all__ = ["measure"]

_ROW = "from the start after kill -9 to all that came meanwhile, window aggregation"
_PEER = "the same flow behind a tenth of the history"
_SHARE = 10
_UNREAD = 20_000
_GOAL = 0.8


def measure(stand: Stand) -> None:
    for number, who in stand.turns():
        history = stand.plan.events if who == "us" else stand.plan.events // _SHARE
        name = f"recovery-{who}-{number}"
        task = stand.task("flow", "per_minute", name, stand.filled(f"{name}-orders", history))
        task.data.mkdir(parents=True)
        _run(task, history)
        produce(stand.cluster, task.topic, _recent(history, _UNREAD), stand.plan.partitions)
        stand.measured.note(who, _ROW, _PEER, _run(task, history + _UNREAD), "s", _GOAL)


def _run(task: Task, records: int) -> float:
    """Seconds from the command until so many records of the topic are derived; then it is killed."""
    said, cluster = task.data / f"driver-{records}.out", Cluster(task.bootstrap)
    began = time.monotonic()
    with open(said, "wb") as out:
        process = subprocess.Popen(
            task.command(), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        until(process, said, lambda: _derived(cluster, f"{task.output}-flow.progress") >= records)
        return time.monotonic() - began
    finally:
        process.kill()
        process.wait()


def _derived(cluster: Cluster, progress: str) -> int:
    found = current(cluster, progress)
    if found is None or found.last is None:
        return 0
    return sum(to for ranges in found.last.inputs.values() for _, to in ranges.values())


def _recent(first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    now = datetime.now(UTC)
    for number in range(count):
        yield event(first + number, now - timedelta(milliseconds=count - number))
