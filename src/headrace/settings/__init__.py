"""All settings. ``headrace.toml`` overrides the defaults, the environment overrides ``headrace.toml``, and
options override both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

__all__ = [
    "DEFAULT_SERVE_LISTEN",
    "FREE_SERVE_LISTEN",
    "SERVE_OFF",
    "AlertSettings",
    "BrokerSettings",
    "FlowSettings",
    "LogSettings",
    "MetricsSettings",
    "ServeSettings",
    "Settings",
    "SparkSettings",
    "SwitchSettings",
    "TopicSettings",
    "VerifySettings",
    "ViewSettings",
]

DEFAULT_SERVE_LISTEN = "127.0.0.1:8180"
"""Address of the web UI and the HTTP API."""
FREE_SERVE_LISTEN = "127.0.0.1:0"
SERVE_OFF = "off"

Count = Annotated[int, msgspec.Meta(ge=1)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
PercentOrNone = Annotated[int, msgspec.Meta(ge=0, le=100)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
State = Literal["memory", "rocksdb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    bootstrap_servers: Text | None = None
    """Addresses of the brokers that have the log; None starts the embedded broker."""
    listen: Text = "127.0.0.1:9092"
    """Address of the embedded broker."""
    durability: Literal["synced", "os"] = "synced"
    """When the embedded broker acknowledges records: once they are on disk (synced), or once the operating system has
    them (os)."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """librdkafka properties for every client; can contain passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of the embedded broker, for ``headrace run`` and ``headrace broker``."""

    backup: Path | None = None
    """Folder for the continuous backup; None for no backup."""
    backup_every_ms: Count = 10_000
    """Milliseconds between backups: the most you can lose."""
    backup_keep_s: Count = 604_800
    """How long restore points are retained, in seconds: how far back you can restore."""
    backup_key_file: Path | None = None
    """File with the key for the MAC (message authentication code) of the backup's manifests; without a key, manifests
    have no MAC."""
    backup_key: Text | None = field(default=None, repr=False)
    """The key itself, for an environment without secret files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    master: Text = "local[*]"
    driver_memory: Text = "1g"
    shuffle_partitions: Count | None = None
    """Partitions of a flow's state; if None, the number depends on where Spark runs."""
    state: State | None = None
    """Where flows store state; if None, this depends on where Spark runs."""
    jars: Path | None = None
    """Folder with the connector's jars; None downloads them once into the user's cache."""
    java_options: str = ""
    """Additional JVM options, in shell syntax."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Other Spark configuration; overrides the values that Headrace sets."""
    secret_file: Path | None = None
    """File with the authentication secret of a standalone Spark cluster."""
    secret: Text | None = field(default=None, repr=False)
    """The secret itself, for an environment without secret files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    max_rows: Count = 100_000
    """Maximum records per batch."""
    max_bytes: Count = 64 * 1024 * 1024
    """Maximum input bytes per batch."""
    trigger_ms: NotNegative | None = None
    """Minimum milliseconds between two batches; if None, this depends on where Spark runs."""
    realtime_ms: Annotated[int, msgspec.Meta(ge=5_000)] = 120_000
    """Milliseconds between two progress records of a real-time flow. A restart after a crash repeats the records since
    the last progress record. Dead letters appear up to this much later."""
    future_ms: NotNegative = 3_600_000
    """How many milliseconds an event's time may be ahead of the time when the log received the event."""
    idle_ms: NotNegative = 600_000
    """Milliseconds without new records after which a partition no longer holds back the watermark of a flow."""
    transaction_timeout_ms: Count = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings:
    """When a flow switches to a new generation without an operator."""

    auto: bool = True
    """Whether a flow switches by itself when the new generation has caught up and the difference is within the
    limits."""
    gone_percent_max: PercentOrNone = 1
    """Maximum keys, and rows, that the new generation does not have, in percent of all."""
    changed_percent_max: PercentOrNone = 100
    """Maximum keys whose rows changed, in percent of all keys."""
    rejected_percent_max: PercentOrNone = 1
    """By how many percentage points the share of late records, and that of dead records, may grow."""
    keep_s: NotNegative = 86_400
    """Seconds for which ``headrace run`` keeps a generation after the switch to another one; 0 for until it is
    dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    partitions: Count = 1
    """Partitions of a new topic whose declaration does not set ``partitions``."""
    replication: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Replicas of each partition of a new topic; -1 for the cluster's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    max_rows: Count = 10_000
    """Maximum changes per store transaction; a flow batch is never split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    every_s: NotNegative = 0
    """Seconds between two verifications of every view by ``headrace run``; 0 for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    every_s: NotNegative = 5
    """Seconds between two evaluations of the alert rules by ``headrace run``; 0 for never."""
    defaults: bool = True
    """Whether the built-in rules are active."""
    rules: Mapping[str, str] = field(default_factory=dict)
    """Additional rules by name. They override the app's rules; the value ``off`` disables a rule."""
    exec: Text | None = None
    """Command that runs when an alert starts to fire or is resolved; it gets the alert as JSON on standard input. None
    for no command."""
    exec_timeout_s: Count = 30
    """Seconds after which the command is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    listen: Text | None = None
    """Address where ``headrace run`` serves /metrics; None for off."""
    anyone_may_read: bool = False
    """Whether other machines may read the metrics."""
    hosts: str = ""
    """Additional host names that Prometheus may use for the address, separated by commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    listen: Text | None = None
    """Address of the HTTP server of ``headrace run`` and ``headrace serve``; None for the default address. With
    ``off``, ``headrace run`` starts no server."""
    hosts: str = ""
    """Additional host names of the server, separated by commas."""
    origins: str = ""
    """Origins whose web pages may send requests, e.g. ``https://shop.example``, separated by commas."""
    access_log: Path | None = None
    """File for one JSON line per request. If None, ``headrace serve`` writes to standard error, and ``headrace run``
    writes to ``access.log`` in the data directory."""
    access_log_bytes_max: Count = 67_108_864
    """Size in bytes at which the access log starts a new file; the previous file is retained."""
    connections: Count = 1_000
    threads: Count = 8
    """Maximum concurrent queries to stores and to the log."""
    rows_max: Count = 10_000
    """Maximum rows per page of results."""
    body_bytes_max: Count = 1_048_576
    """Maximum bytes of a request body."""
    receive_ms: Count = 10_000
    """Timeout from the first byte of a request to its last byte."""
    read_ms: Count = 10_000
    """Timeout of a query to a store or to the log."""
    wait_ms_max: Count = 30_000
    """Maximum time that a request may wait for a view to catch up."""
    stale_s: NotNegative = 0
    """The server is not ready while a view is more than this many seconds behind the log; 0 ignores lag."""
    cached_bytes_max: Count = 67_108_864
    """Maximum bytes of the response cache, which all views with ``cached`` share."""
    unsent_bytes_max: Count = 268_435_456
    """Maximum response bytes that clients have not read yet, in total. Above it, the slowest client is disconnected."""
    notice_s: NotNegative = 0
    """How many seconds the server still accepts requests after a stop request, while ``/readyz`` already fails."""
    drain_s: Count = 10
    """Timeout for requests in progress when the server stops."""
    subscribers: Count = 1_000
    """Maximum WebSocket subscribers. Server-sent events may use half of ``connections``."""
    frame_ms: NotNegative = 100
    """Minimum milliseconds between two frames to a subscriber."""
    history_bytes: Count = 16_777_216
    """Bytes of changes that the server buffers per view with subscribers, for slow subscribers."""
    heartbeat_s: Count = 15
    """Seconds without a message after which the server sends a subscriber a heartbeat."""
    requests_keep_s: Count = 604_800
    """Seconds for which the server stores the response to an ``Idempotency-Key``."""
    pg_listen: Text | None = None
    """Address for read-only SQL over the PostgreSQL protocol; None for off."""
    pg_connections: Count = 100
    """Maximum PostgreSQL connections."""
    pg_connections_per_address: Count = 75
    """Maximum PostgreSQL connections from one address."""
    pg_connections_per_token: Count = 50
    """Maximum PostgreSQL connections with one token."""
    pg_idle_ms: Count = 1_800_000
    """Idle milliseconds after which a PostgreSQL connection is closed."""
    sql_ms: Count = 10_000
    """Timeout of an SQL statement."""
    sql_rows_max: Count = 100_000
    """Maximum rows of an SQL statement's result."""
    sql_memory_mb: Count = 512
    """Maximum memory of an SQL statement, for its input rows and its results."""
    sql_processes: Count = 2
    """Maximum processes that run SQL statements. They start on demand; each runs one statement at a time."""
    token_share_percent: Percent = 50
    """Percent of SQL processes, searches and subscriptions that one token may use; at least one of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path = Path("headrace-data")
    """Data directory: the embedded log, Spark's checkpoints, views."""
    log: LogSettings = field(default_factory=LogSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    switch: SwitchSettings = field(default_factory=SwitchSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)

    @property
    def log_dir(self) -> Path:
        """The data directory of the embedded broker."""
        return self.data / "log"

    @property
    def checkpoints(self) -> Path:
        return self.data / "checkpoints"

    @property
    def spark_dir(self) -> Path:
        """Spark's own log and temporary files."""
        return self.data / "spark"

    @property
    def cores(self) -> int:
        """The number of cores of a local Spark master. For a cluster: the number of cores of this machine."""
        machine_cores = (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
        count = self.spark.master.partition("[")[2].partition("]")[0].partition(",")[0]
        if self.spark.master == "local":
            return 1
        return int(count) if count.isdecimal() else machine_cores

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in one JVM on this machine."""
        return self.spark.master == "local" or self.spark.master.startswith("local[")
