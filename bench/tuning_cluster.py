"""Settings on a Spark cluster: a master and two workers on this machine, tried one by one as on one machine.

What the network and a store of checkpoints elsewhere add is not in it; how much more each partition, each state store
and each trigger costs is. The CPU is that of the driver and of all that the cluster runs.
"""

from __future__ import annotations

import contextlib

from bench.host import Fresh
from bench.stand import Stand
from bench.tuning import Try, measure_tries
from tests.support.spark_cluster import SparkCluster

__all__ = ["measure"]


def measure(stand: Stand) -> None:
    with contextlib.closing(SparkCluster(stand.home / "spark-cluster")) as cluster:
        base = {
            "master": cluster.master,
            "secret_file": cluster.secret_file,
            "conf": {"spark.executor.memory": "512m"},
        }

        def tried(name: str, **spark: object) -> Try:
            return Try(name, {**base, **spark})

        tries = [
            *(
                tried(f"{count} partitions of state in RocksDB", state="rocksdb", shuffle_partitions=count)
                for count in (2, 4, 16, 200)
            ),
            tried("4 partitions of state in memory", state="memory", shuffle_partitions=4),
        ]
        default = tried("the default of a cluster")
        paused = Try("a trigger every 1,000 ms", default.spark, trigger_ms=1_000)
        chosen = tries[:1] if stand.plan.is_quick else [*tries, paused]
        # Only a driver of its own can have another master.
        measure_tries(stand, Fresh(), default, chosen, "a cluster", cluster.pids)
