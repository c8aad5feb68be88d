"""Spark's configuration for an app: what settings say, and what keeps a long-running local Spark small and quiet."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ConfigError
from headrace.flow import placement
from headrace.settings import Settings
from headrace.settings.secrets import read_secret

__all__ = ["LOCAL", "REALTIME_POOL", "spark_conf", "write_pools"]

LOCAL = "127.0.0.1"
REALTIME_POOL = "headrace.realtime"
"""Of Spark's scheduler: between two stretches of a flow in real time its slots are free for a moment, and whatever else
waits for one takes them. The next stretch must be the first to get one back, not the last."""
_POOLS = "pools.xml"
_SHARE = 10_000
"""More slots than there are: those that have fewer than their share come before all others."""
# A batch writes down what it has changed. Without the changelog it would upload files of RocksDB, for each partition
# and each batch, however little was changed. Each store has two write buffers of 8 MB outside the heap and as large a
# cache, besides filters and indexes, some bytes for each key; with Spark's 64 MB a few dozen would take gigabytes.
# One bound for all stores of a process (boundedMemoryUsage) would put filters and indexes into the shared cache, which
# is in 64 shards: from about six million keys on they were read from their files for every key that was asked for.
_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "8",
    "spark.sql.streaming.stateStore.rocksdb.maxWriteBufferNumber": "2",
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "8",
}
# They take a part of the plan that is, or turns out, empty away, and what was counted in it along with it: a batch of
# nothing but dead letters, or a join with a table that has no rows yet, would have no counts.
_KEEPING_COUNTS = {
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
}
# Asked for files of this machine, Hadoop starts programs (readlink, chmod): 13 processes for a batch with state. By its
# older interface there are three. Both ways a file is written beside and renamed, and Hadoop's own checksums stay.
_LOCAL_FILES = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
# Read only while a JVM is started, which is done before: they would be passed over in silence.
_TOO_LATE = {
    "spark.driver.memory": "spark.driver_memory",
    "spark.driver.extraJavaOptions": "spark.java_options",
    "spark.driver.defaultJavaOptions": "spark.java_options",
    "spark.driver.extraClassPath": 'spark.conf."spark.jars"',
    "spark.driver.extraLibraryPath": "LD_LIBRARY_PATH",
    "spark.master": "spark.master",
}
# What Spark keeps of jobs that are over, for a page that is not served: of a stream there would be thousands.
_NOTHING_KEPT = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "5",
}


_OWN_SECRETS = re.compile(r"local(\[.*\])?|yarn|k8s://.*")
"""Masters for which Spark makes a secret itself, and hands it to its executors."""
_SECRET_BYTES_MIN = 16


def _authentication(settings: Settings) -> dict[str, str]:
    """Whoever reaches a port of Spark could run code, so all of its processes prove that they have one secret. It is in
    a file that only this user can read, and in the environment of executors; not in a command line.
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
    if _OWN_SECRETS.fullmatch(spark.master):
        return conf
    if spark.master.startswith("local-cluster["):
        return conf | {"spark.authenticate.secret": secrets.token_hex(32)}
    raise ConfigError(
        f"spark.master is {spark.master}, and no secret is set that its processes authenticate by",
        hint="give master, workers and spark.secret_file the same secret: see docs/how-to/cluster.md",
    )


def spark_conf(
    settings: Settings, app_name: str, connector: Sequence[Path], spill: Path, slots: int = 0
) -> dict[str, str]:
    spark = settings.spark
    for name in spark.conf:
        if name in _TOO_LATE:
            raise ConfigError(
                f'spark.conf."{name}" would have no effect: it is read before there is a session',
                hint=f"set {_TOO_LATE[name]} instead",
            )
    conf = {
        "spark.app.name": app_name,
        "spark.master": spark.master,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(spill / "warehouse"),
        "spark.local.dir": str(spill),
        **_NOTHING_KEPT,
        **_KEEPING_COUNTS,
        **_authentication(settings),
    }
    if settings.is_local:
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = LOCAL
        conf["spark.default.parallelism"] = str(settings.cores)
        if slots:
            conf["spark.master"] = f"local[{settings.cores + slots}]"
        conf |= _LOCAL_FILES
    conf["spark.sql.shuffle.partitions"] = str(placement.shuffle_partitions(settings))
    if placement.state(settings) == "rocksdb":
        conf |= _ROCKSDB
    if settings.verify.every_s or slots:
        # A proof is long and a batch is short: neither waits until the other has had all it wants.
        conf["spark.scheduler.mode"] = "FAIR"
        conf["spark.scheduler.allocation.file"] = f"file://{(spill / _POOLS).absolute()}"
    conf |= spark.conf
    if not settings.is_local:
        # A local master has them on its class path; executors elsewhere must be sent them.
        own = [spark.conf["spark.jars"]] if "spark.jars" in spark.conf else []
        conf["spark.jars"] = ",".join([*map(str, connector), *own])
    return conf


def write_pools(spill: Path) -> None:
    """The file that the configuration names."""
    (spill / _POOLS).write_text(
        f'<allocations><pool name="{REALTIME_POOL}"><schedulingMode>FAIR</schedulingMode><weight>1</weight>'
        f"<minShare>{_SHARE}</minShare></pool></allocations>\n"
    )
