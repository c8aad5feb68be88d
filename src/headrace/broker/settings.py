"""What a broker is told when it starts; nothing here changes while it runs.

Broker-wide defaults of topics, which may change at run time, go by their Kafka names in ``configs`` and are
the lowest of three layers: see ``broker_configs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.errors import ConfigError
from headrace.log.bucket_address import BucketAddress

__all__ = ["BrokerSettings", "Durability"]

Durability = Literal["synced", "os"]

_ANY_ADDRESS = frozenset({"", "0.0.0.0", "::", "[::]"})  # noqa: S104  recognised, so as to refuse to advertise it


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    data_dir: Path
    node_id: int = 1
    listen_host: str = "127.0.0.1"
    listen_port: int = 9092
    advertised_host: str | None = None
    """Where clients find this broker, if that is not where it listens."""
    advertised_port: int | None = None
    durability: Durability = "synced"
    """``synced``: an acknowledgement means that the disk has it. ``os``: that the page cache has it."""
    auto_create_topics: bool = True
    num_partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    topics_max: int = 10_000
    partitions_per_topic_max: int = 1_000
    partitions_max: int = 10_000
    """Of all topics together: each holds open files and some memory."""
    volatile_bytes_max: int = 1 << 30
    """What all volatile topics together may take of memory, by their ``retention.bytes``."""
    retention_check_s: float = 30.0
    """How often old data is looked for."""
    archive_dir: Path | None = None
    """Where topics with ``headrace.archive.enable`` keep what retention takes; it must be there."""
    archive_bucket: BucketAddress | None = None
    """The same in an object store; one of both."""
    backup_dir: Path | None = None
    """Where the continuous backup goes; it must be there."""
    backup_every_s: float = 10.0
    """How often a moment of the log is shipped: what the loss of the machine can take."""
    backup_keep_ms: int = 7 * 24 * 3600 * 1000
    """How far back there are moments to restore to."""
    backup_key: bytes | None = field(default=None, repr=False)
    """Manifests carry its MAC; without a key they carry none."""
    backup_bytes_per_s: int = 0
    """What the backup may read; 0 for no limit."""
    compaction_check_s: float = 15.0
    """How often topics are looked at that may need compaction (``log.cleaner.backoff.ms``)."""
    compaction_memory_bytes: int = 128 << 20
    """For the keys of one compaction; more keys take more turns (``log.cleaner.dedupe.buffer.size``)."""
    compaction_bytes_per_s: int = 64 << 20
    """What compaction may read and write; 0 for no limit (``log.cleaner.io.max.bytes.per.second``)."""

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
                f"clients cannot connect to {self.advertised[0]!r}",
                hint="say where they find this broker: --advertise HOST:PORT",
            )

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port as they are told to clients."""
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
    def _check(fits: bool, name: str, value: object, wanted: str) -> None:
        if not fits:
            raise ConfigError(f"setting {name} is {value!r}, and must be {wanted}")
