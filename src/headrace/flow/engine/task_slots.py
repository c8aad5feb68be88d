"""Spark task slots for real-time flows. A running real-time flow occupies one slot per input partition.

With too few slots, Spark would silently leave partitions unread. So the slots are counted before a real-time flow
starts, and again after each of its long batches, because partitions can be added. One slot must remain free for all
other work. A local Spark starts with one extra slot for each input partition of these flows. On a cluster, executors
start and stop, so there a flow waits until enough slots exist, and reports that it waits.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.flow.errors import SlotsTaken
from headrace.flow.spark.internals import task_slots
from headrace.flow.upstream import log_topic
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["expect_slots", "occupy", "release", "slots_for"]

_lock = threading.Lock()
_occupied: dict[str, int] = {}


def slots_for(cluster: Cluster, app: App, settings: Settings) -> int:
    """Return how many extra slots a local Spark needs, in addition to its cores."""
    slots = 0
    for flow in app.flows:
        if flow.is_realtime:
            topic = flow.streams[0]
            existing = cluster.topic(log_topic(cluster, app, topic))
            slots += existing.partitions if existing else topic.partitions or settings.topics.partitions
    return slots


def occupy(spark: SparkSession, flow: str, partitions: int) -> None:
    """Occupy one slot per partition. These replace the slots that the flow occupied before."""
    total, local = task_slots(spark)
    with _lock:
        occupied_by_others = sum(count for name, count in _occupied.items() if name != flow)
        expect_slots(flow, partitions, occupied_by_others, total, local=local)
        _occupied[flow] = partitions


def expect_slots(flow: str, partitions: int, occupied_by_others: int, total: int, *, local: bool) -> None:
    needed = occupied_by_others + partitions + 1
    if needed <= total:
        return
    remedy = (
        f"restart the app, which counts the partitions again; or set spark.master=local[{needed}]"
        if local
        else f"the flow starts when Spark has {needed} executor cores (spark.master, spark.cores.max)"
    )
    raise SlotsTaken(
        f"real-time flow {flow} needs {partitions} Spark task slots, one for each partition; of {total} slots,"
        f" {max(0, total - occupied_by_others - 1)} are available",
        detail=f"other real-time flows occupy {occupied_by_others} slots, and one slot must remain free for other work",
        hint=f"{remedy}; or read a topic with fewer partitions",
        retriable=not local,
    )


def release(flow: str) -> None:
    with _lock:
        _occupied.pop(flow, None)
