"""Spark's configuration for an app: the user's settings, and defaults for a small, long-running local Spark.

``bench.flow`` measures the defaults; docs/settings.md explains them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ConfigError
from headrace.settings import Settings, State
from headrace.settings.secrets import read_secret

__all__ = ["LOCAL", "REALTIME_POOL", "shuffle_partitions", "spark_conf", "state", "trigger_ms", "write_pools"]

LOCAL = "127.0.0.1"
REALTIME_POOL = "headrace.realtime"
"""A pool of Spark's scheduler. Between two long batches of a real-time flow, the flow's slots are free for a moment, so
other tasks could occupy them. In this pool, the next batch gets slots before all other tasks.
"""
_POOLS = "pools.xml"
_MIN_SHARE = 10_000
"""The pool's minimum share, more slots than exist. Spark serves pools below their minimum share first."""
# With the changelog, a batch writes only its changes. Without it, each batch would upload RocksDB files for each
# partition even after a small change. Each store has two write buffers of 8 MB outside the heap, a cache of 8 MB, and
# filters and indexes of some bytes per key. With Spark's default of 64 MB, a few dozen stores would need gigabytes.
# Spark's common limit for all stores (boundedMemoryUsage) is not used: it stores filters and indexes in the shared
# cache of 64 shards. With more than about six million keys, lookups would then read them from files.
_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "8",
    "spark.sql.streaming.stateStore.rocksdb.maxWriteBufferNumber": "2",
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "8",
}
# Exclude optimizer rules that remove empty parts of a plan: the counts of such a part would be removed with
# it. Otherwise a batch with only dead letters, or a join with an empty table, would have no counts.
_KEEP_COUNTS = {
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
}
# For local files, Hadoop starts programs (readlink, chmod). With the default interface, a batch with state
# starts 13 processes; with this older interface, only three. Both interfaces write a temporary file and
# rename it, and write Hadoop's checksums.
_LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
# The JVM reads these properties when it starts, before a session exists, so Spark would ignore them in the
# session's configuration.
_START_OPTIONS = {
    "spark.driver.memory": "spark.driver_memory",
    "spark.driver.extraJavaOptions": "spark.java_options",
    "spark.driver.defaultJavaOptions": "spark.java_options",
    "spark.driver.extraClassPath": 'spark.conf."spark.jars"',
    "spark.driver.extraLibraryPath": "LD_LIBRARY_PATH",
    "spark.master": "spark.master",
}
# Spark's UI is off, so Spark need not retain finished jobs: a stream has thousands of jobs.
_RETAIN_FEW_JOBS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}


_MASTERS_WITH_SECRET = re.compile(r"local(\[.*\])?|yarn|k8s://.*")
"""Masters for which Spark itself creates a secret and passes it to the executors."""
_SECRET_BYTES_MIN = 16
_CLUSTER_PARTITIONS = 16
_CLUSTER_TRIGGER_MS = 500


def _authentication(settings: Settings) -> dict[str, str]:
    """Return the authentication settings. Anyone who can connect to a port of Spark could run code, so all processes
    of Spark authenticate with one secret. The secret is in a file that only this user can read and in the environment
    of executors, never in a command line.
    """
    spark = settings.spark
    conf = {"spark.authenticate": "true"}
    if (
        spark.conf.get("spark.authenticate", "true").lower() != "true"
        or "spark.authenticate.secret" in spark.conf
    ):
        return conf
    secret = read_secret("spark.secret", spark.secret, spark.secret_file, bytes_min=_SECRET_BYTES_MIN)
    if secret is not None:
        return conf | {"spark.authenticate.secret": secret.decode("utf-8", "surrogateescape")}
    if _MASTERS_WITH_SECRET.fullmatch(spark.master):
        return conf
    if spark.master.startswith("local-cluster["):
        return conf | {"spark.authenticate.secret": secrets.token_hex(32)}
    raise ConfigError(
        f"spark.master is {spark.master}, but no secret is set for its processes",
        hint="use the same secret for master, workers and spark.secret_file: see docs/how-to/cluster.md",
    )


def spark_conf(
    settings: Settings, app_name: str, connector: Sequence[Path], spill: Path, slots: int = 0
) -> dict[str, str]:
    spark = settings.spark
    for name in spark.conf:
        if name in _START_OPTIONS:
            raise ConfigError(
                f'spark.conf."{name}" would have no effect: Spark reads it before the session starts',
                hint=f"set {_START_OPTIONS[name]} instead",
            )
    conf = {
        "spark.app.name": app_name,
        "spark.master": spark.master,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(spill / "warehouse"),
        "spark.local.dir": str(spill),
        **_RETAIN_FEW_JOBS,
        **_KEEP_COUNTS,
        **_authentication(settings),
    }
    if settings.is_local:
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = LOCAL
        conf["spark.default.parallelism"] = str(settings.cores)
        if slots:
            conf["spark.master"] = f"local[{settings.cores + slots}]"
        conf |= _LOCAL_FILES
    conf["spark.sql.shuffle.partitions"] = str(shuffle_partitions(settings))
    if state(settings) == "rocksdb":
        conf |= _ROCKSDB
    if settings.verify.every_s or slots:
        # With Spark's default mode, a short batch would wait until a long verification has finished.
        conf["spark.scheduler.mode"] = "FAIR"
        conf["spark.scheduler.allocation.file"] = f"file://{(spill / _POOLS).absolute()}"
    conf |= spark.conf
    if not settings.is_local:
        # A local master has the jars on its class path. Spark must send them to remote executors.
        user_jars = [spark.conf["spark.jars"]] if "spark.jars" in spark.conf else []
        conf["spark.jars"] = ",".join([*map(str, connector), *user_jars])
    return conf


def write_pools(spill: Path) -> None:
    """Write the file with the scheduler pools. The configuration has its path."""
    (spill / _POOLS).write_text(
        f'<allocations><pool name="{REALTIME_POOL}"><schedulingMode>FAIR</schedulingMode><weight>1</weight>'
        f"<minShare>{_MIN_SHARE}</minShare></pool></allocations>\n"
    )


def shuffle_partitions(settings: Settings) -> int:
    """Return the number of shuffle partitions. On one machine, it is the number of cores: fewer partitions leave cores
    idle, and more partitions cost time in every batch. A flow cannot change its number later, so on a cluster the
    number is higher, to allow for growth.
    """
    if settings.spark.shuffle_partitions is not None:
        return settings.spark.shuffle_partitions
    return settings.cores if settings.is_local else _CLUSTER_PARTITIONS


def state(settings: Settings) -> State:
    """Return the state store: memory is faster for small state, RocksDB can store more than fits in memory."""
    if settings.spark.state is not None:
        return settings.spark.state
    return "memory" if settings.is_local else "rocksdb"


def trigger_ms(settings: Settings) -> int:
    """Return the interval between batches. On a cluster, a batch occupies executors that other work needs."""
    if settings.flow.trigger_ms is not None:
        return settings.flow.trigger_ms
    return 0 if settings.is_local else _CLUSTER_TRIGGER_MS
