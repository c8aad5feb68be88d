"""Task slots: a flow in real time holds one for each partition that it reads, for as long as it runs.

With too few slots Spark would leave partitions unread, and nobody would be told. So they are counted before such a flow
starts, and one must be left for everything else.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.flow.errors import SlotsTaken
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["free", "hold", "slots_for"]

_lock = threading.Lock()
_held: dict[str, int] = {}


def slots_for(cluster: Cluster, app: App, settings: Settings) -> int:
    """That a local Spark needs beside its cores."""
    found = 0
    for flow in app.flows:
        if flow.is_realtime:
            topic = flow.streams[0]
            there = cluster.topic(topic.name)
            found += there.partitions if there else topic.partitions or settings.topics.partitions
    return found


def hold(spark: SparkSession, flow: str, partitions: int) -> None:
    """Instead of what it held before."""
    context: Any = spark.sparkContext._jsc.sc()
    total = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    with _lock:
        others = sum(count for name, count in _held.items() if name != flow)
        if others + partitions >= total:
            raise SlotsTaken(
                f"flow {flow} reads {partitions} partitions in real time, and each holds a task slot of Spark, which"
                f" has {total}",
                detail=f"other flows in real time hold {others}, and one must be left for everything else",
                hint=f"spark.master must give it at least {others + partitions + 1}: local[{others + partitions + 1}],"
                " or as many cores of executors; or read a topic of fewer partitions",
            )
        _held[flow] = partitions


def free(flow: str) -> None:
    with _lock:
        _held.pop(flow, None)
