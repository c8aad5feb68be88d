"""The settings of a broker. They do not change while the broker runs.

``configs`` has limits and topic defaults under their Kafka names. Topic defaults can be overridden at run time, because
``configs`` is the lowest of three layers (``broker_configs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.errors import ConfigError
from headrace.log.archive_store import BucketAddress

__all__ = ["BrokerSettings", "Durability"]

Durability = Literal["synced", "os"]

_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::", "[::]"})  # noqa: S104  no socket binds to it here


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    data_dir: Path
    node_id: int = 1
    listen_host: str = "127.0.0.1"
    listen_port: int = 9092
    advertised_host: str | None = None
    """The host that clients connect to, if it differs from ``listen_host``."""
    advertised_port: int | None = None
    durability: Durability = "synced"
    """With ``synced``, acknowledged records are on disk. With ``os``, they may be only in the page cache."""
    auto_create_topics: bool = True
    num_partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    topics_max: int = 10_000
    partitions_per_topic_max: int = 1_000
    partitions_max: int = 10_000
    """Maximum partitions of all topics together. Each partition uses open files and some memory."""
    volatile_bytes_max: int = 1 << 30
    """Maximum memory of all volatile topics together, computed from their ``retention.bytes``."""
    retention_check_s: float = 30.0
    """Seconds between two retention checks."""
    archive_dir: Path | None = None
    """An existing folder to which retention moves the old segments of topics with ``headrace.archive.enable``."""
    archive_bucket: BucketAddress | None = None
    """A bucket for the archive. Only one of ``archive_dir`` and ``archive_bucket`` can be set."""
    backup_dir: Path | None = None
    """An existing folder for the continuous backup."""
    backup_every_s: float = 10.0
    """Seconds between two restore points. If the machine is lost, the records since the last restore point are lost."""
    backup_keep_ms: int = 7 * 24 * 3600 * 1000
    """Milliseconds for which restore points are retained."""
    backup_key: bytes | None = field(default=None, repr=False)
    """The key for the MAC of each manifest. Without a key, manifests have no MAC."""
    backup_bytes_per_s: int = 0
    """Maximum bytes per second that the backup reads. 0 means no limit."""
    compaction_check_s: float = 15.0
    """Seconds between two checks for topics to compact (``log.cleaner.backoff.ms``)."""
    compaction_memory_bytes: int = 128 << 20
    """Memory for the keys of one compaction. More keys need more passes (``log.cleaner.dedupe.buffer.size``)."""
    compaction_bytes_per_s: int = 64 << 20
    """Maximum bytes per second that compaction reads and writes (``log.cleaner.io.max.bytes.per.second``). 0 means no
    limit.
    """

    def __post_init__(self) -> None:
        self._check(0 <= self.node_id < 2**31, "node_id", self.node_id, "a number from 0 to 2147483647")
        self._check(0 <= self.listen_port < 2**16, "listen_port", self.listen_port, "a port number")
        if self.advertised_port is not None:
            self._check(
                0 <= self.advertised_port < 2**16, "advertised_port", self.advertised_port, "a port number"
            )
        self._check(self.durability in ("synced", "os"), "durability", self.durability, "synced or os")
        self._check(self.topics_max >= 1, "topics_max", self.topics_max, "at least 1")
        self._check(self.partitions_max >= 1, "partitions_max", self.partitions_max, "at least 1")
        self._check(
            1 <= self.num_partitions <= self.partitions_per_topic_max,
            "num_partitions",
            self.num_partitions,
            f"from 1 to partitions_per_topic_max, {self.partitions_per_topic_max}",
        )
        if self.advertised[0] in _ANY_ADDRESS:
            raise ConfigError(
                f"clients cannot connect to the address {self.advertised[0]!r}",
                hint="set the address that clients connect to with --advertise HOST:PORT",
            )

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and port that clients connect to."""
        return (
            self.listen_host if self.advertised_host is None else self.advertised_host,
            self.listen_port if self.advertised_port is None else self.advertised_port,
        )

    @property
    def has_archive(self) -> bool:
        return self.archive_dir is not None or self.archive_bucket is not None

    @property
    def waits_for_sync(self) -> bool:
        return self.durability == "synced"

    @staticmethod
    def _check(is_valid: bool, name: str, value: object, expected: str) -> None:
        if not is_valid:
            raise ConfigError(f"invalid setting {name} {value!r}: expected {expected}")
