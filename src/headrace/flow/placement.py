"""Settings that go by where Spark runs, on this machine or on a cluster, unless the user has set them.

``bench.flow`` measures them (settings, cluster, state); docs/settings.md says why each is what it is.
"""

from __future__ import annotations

from headrace.settings import Settings, State

__all__ = ["shuffle_partitions", "state", "trigger_ms"]

_CLUSTER_PARTITIONS = 16
_CLUSTER_TRIGGER_MS = 500


def shuffle_partitions(settings: Settings) -> int:
    """On one machine as many as cores: fewer leave some idle, and each more is paid for in every batch. A flow keeps
    its number, so a cluster has some to grow into.
    """
    if settings.spark.shuffle_partitions is not None:
        return settings.spark.shuffle_partitions
    return settings.cores if settings.is_local else _CLUSTER_PARTITIONS


def state(settings: Settings) -> State:
    """In memory it is faster while it is small; RocksDB holds more than memory does."""
    if settings.spark.state is not None:
        return settings.spark.state
    return "memory" if settings.is_local else "rocksdb"


def trigger_ms(settings: Settings) -> int:
    """On one machine at once, since its cores have nothing better to do. On a cluster a batch occupies executors that
    others wait for.
    """
    if settings.flow.trigger_ms is not None:
        return settings.flow.trigger_ms
    return 0 if settings.is_local else _CLUSTER_TRIGGER_MS
