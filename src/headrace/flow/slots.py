"""Task slots: a flow in real time holds one for each partition that it reads, for as long as it runs.

With too few slots Spark would leave partitions unread, and nobody would be told. So they are counted before such a flow
starts and after each stretch, since partitions may be added; one must be left for everything else. A local Spark is
given as many as there are partitions, beside its cores. On a cluster executors come and go: there a flow waits for
them, and says so.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.flow.errors import SlotsTaken
from headrace.flow.opening import log_topic
from headrace.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["expect_slots", "free", "hold", "slots_for"]

_lock = threading.Lock()
_held: dict[str, int] = {}


def slots_for(cluster: Cluster, app: App, settings: Settings) -> int:
    """That a local Spark needs beside its cores."""
    found = 0
    for flow in app.flows:
        if flow.is_realtime:
            topic = flow.streams[0]
            there = cluster.topic(log_topic(cluster, app, topic))
            found += there.partitions if there else topic.partitions or settings.topics.partitions
    return found


def hold(spark: SparkSession, flow: str, partitions: int) -> None:
    """Instead of what it held before."""
    context: Any = spark.sparkContext._jsc.sc()
    total = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    with _lock:
        others = sum(count for name, count in _held.items() if name != flow)
        expect_slots(flow, partitions, others, total, local=bool(context.isLocal()))
        _held[flow] = partitions


def expect_slots(flow: str, partitions: int, others: int, total: int, *, local: bool) -> None:
    needed = others + partitions + 1
    if needed <= total:
        return
    way_out = (
        f"start it again, and its partitions are counted anew; or give Spark more: spark.master=local[{needed}]"
        if local
        else f"it begins when Spark has {needed}, as many cores of executors (spark.master, spark.cores.max)"
    )
    raise SlotsTaken(
        f"flow {flow} reads {partitions} partitions in real time, and each holds a task slot of Spark: of {total} it"
        f" can have {max(0, total - others - 1)}",
        detail=f"other flows in real time hold {others}, and one must be left for everything else",
        hint=f"{way_out}; or read a topic of fewer partitions",
        retriable=not local,
    )


def free(flow: str) -> None:
    with _lock:
        _held.pop(flow, None)
