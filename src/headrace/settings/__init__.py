"""What can be set, each with its default; ``headrace.toml``, the environment and flags come above it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

__all__ = [
    "AlertSettings",
    "BrokerSettings",
    "FlowSettings",
    "LogSettings",
    "MetricsSettings",
    "ServeSettings",
    "Settings",
    "SparkSettings",
    "TopicSettings",
    "VerifySettings",
    "ViewSettings",
]

Count = Annotated[int, msgspec.Meta(ge=1)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
State = Literal["memory", "rocksdb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    bootstrap_servers: Text | None = None
    """Of the log that everything uses; without it, the embedded broker is started."""
    listen: Text = "127.0.0.1:9092"
    """Where the embedded broker listens."""
    durability: Literal["synced", "os"] = "synced"
    """What an acknowledgement of the embedded broker means."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of librdkafka, for every client; passwords among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Of the embedded broker, with ``headrace run`` as with ``headrace broker``."""

    backup: Path | None = None
    """A folder for its continuous backup; without one there is none."""
    backup_every_ms: Count = 10_000
    """How often a moment of the log is shipped there: what the loss of the machine can take."""
    backup_keep_s: Count = 604_800
    """How far back there are moments to restore to."""
    backup_key_file: Path | None = None
    """A file with the key for the MAC of the backup's manifests; without a key they carry no MAC."""
    backup_key: Text | None = field(default=None, repr=False)
    """The key itself, for an environment that has no files for secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    master: Text = "local[*]"
    driver_memory: Text = "1g"
    shuffle_partitions: Count | None = None
    """Into how many parts state is split; without it, it goes by where Spark runs (``flow.placement``)."""
    state: State | None = None
    """Where the state of flows is; without it, it goes by where Spark runs."""
    jars: Path | None = None
    """A folder that has the connector's jars; otherwise they are fetched once into the user's cache."""
    java_options: str = ""
    """More options for its JVM, as a shell would take them."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Any other configuration of Spark, over all that is set by us."""
    secret_file: Path | None = None
    """A file with the secret that a standalone cluster authenticates by."""
    secret: Text | None = field(default=None, repr=False)
    """The secret itself, for an environment that has no files for secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    max_rows: Count = 100_000
    """Of a batch."""
    max_bytes: Count = 64 * 1024 * 1024
    """Of a batch's input."""
    trigger_ms: NotNegative | None = None
    """How long a batch waits for more, 0 for not at all; without it, it goes by where Spark runs."""
    realtime_ms: Annotated[int, msgspec.Meta(ge=5_000)] = 120_000
    """How often a flow in real time notes how far it is: what a crash repeats, and how late a dead letter is told."""
    future_ms: NotNegative = 3_600_000
    """How far an event's time may be ahead of its receipt."""
    transaction_timeout_ms: Count = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    partitions: Count = 1
    """Of a topic that is made and does not say."""
    replication: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """Copies of each partition; -1 for the cluster's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    max_rows: Count = 10_000
    """Changes that one transaction of a store takes, where a single batch of a flow does not have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    every_s: NotNegative = 0
    """How long after its last proof ``headrace run`` proves every view again; 0 for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    every_s: NotNegative = 5
    """How often ``headrace run`` looks at lags and rules; 0 for never."""
    defaults: bool = True
    """Whether the rules that need no declaration are in force."""
    rules: Mapping[str, str] = field(default_factory=dict)
    """More rules by name, over those of the app; ``off`` takes one away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    listen: Text | None = None
    """Where ``headrace run`` answers Prometheus; nowhere without it."""
    anyone_may_read: bool = False
    """Whether that may be an address that other machines reach."""
    hosts: str = ""
    """Other names that Prometheus asks for it by, with commas in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    listen: Text | None = None
    """Where ``headrace run`` and ``headrace serve`` answer over HTTP; without it, at the usual place. ``off`` for the
    former not to."""
    hosts: str = ""
    """Other names that it is known by, with commas in between."""
    origins: str = ""
    """Of pages that may ask from a browser, as ``https://shop.example``, with commas in between."""
    access_log: Path | None = None
    """A file for a line of JSON per request; without one, ``headrace serve`` writes them to standard error, and
    ``headrace run`` to ``access.log`` of the data directory."""
    access_log_bytes_max: Count = 67_108_864
    """Past so many bytes the access log begins a new file; the one before is kept."""
    connections: Count = 1_000
    threads: Count = 8
    """Questions that are asked of stores and of the log at a time."""
    rows_max: Count = 10_000
    """Of a page."""
    body_bytes_max: Count = 1_048_576
    """Of a request."""
    receive_ms: Count = 10_000
    """From the first byte of a request to its last."""
    read_ms: Count = 10_000
    """For a store, or the log, to answer."""
    wait_ms_max: Count = 30_000
    """That a request may ask to wait for a view."""
    stale_s: NotNegative = 0
    """How far behind the log a view may be for the server to call itself ready; 0 for any."""
    cached_bytes_max: Count = 67_108_864
    """Of answers that are kept to be given again, of all views that have ``cached`` together."""
    notice_s: NotNegative = 0
    """How long it still takes requests once it is asked to stop, and ``/readyz`` says so to whoever sends them here."""
    drain_s: Count = 10
    """For requests that are being answered when it is asked to stop."""
    subscribers: Count = 1_000
    """By WebSocket; half of ``connections`` by server-sent events."""
    frame_ms: NotNegative = 100
    """Between two frames to a subscriber, at least."""
    history_bytes: Count = 16_777_216
    """What is remembered of the changes of a view that has subscribers, for those who are behind."""
    heartbeat_s: Count = 15
    """How long a subscriber hears nothing, at most."""
    requests_keep_s: Count = 604_800
    """How long the same ``Idempotency-Key`` is answered as it was the first time."""
    pg_listen: Text | None = None
    """Where it answers in PostgreSQL's protocol too, for reading; without it, nowhere."""
    pg_connections: Count = 100
    """In PostgreSQL's protocol."""
    pg_connections_per_address: Count = 75
    """In PostgreSQL's protocol, from one address."""
    pg_connections_per_token: Count = 50
    """In PostgreSQL's protocol, with one token."""
    pg_idle_ms: Count = 1_800_000
    """Milliseconds without a message after which a connection in PostgreSQL's protocol is closed."""
    sql_ms: Count = 10_000
    """For a statement of SQL; what takes longer is stopped."""
    sql_rows_max: Count = 100_000
    """Of the answer to a statement."""
    sql_memory_mb: Count = 512
    """For a statement: the rows that it needs, and what it makes of them."""
    sql_processes: Count = 2
    """That answer statements, one at a time each; begun when they are needed."""
    token_share_percent: Percent = 50
    """Percent of SQL processes, searches and subscriptions that one token may take; at least one of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path = Path("headrace-data")
    """Where everything is kept: the embedded log, Spark's checkpoints, views."""
    log: LogSettings = field(default_factory=LogSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)
    views: ViewSettings = field(default_factory=ViewSettings)
    verify: VerifySettings = field(default_factory=VerifySettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    serve: ServeSettings = field(default_factory=ServeSettings)

    @property
    def log_dir(self) -> Path:
        """The embedded broker's."""
        return self.data / "log"

    @property
    def checkpoints(self) -> Path:
        return self.data / "checkpoints"

    @property
    def spark_dir(self) -> Path:
        """Spark's own log, and what it spills."""
        return self.data / "spark"

    @property
    def cores(self) -> int:
        """That a local master works on; of a cluster, this machine's."""
        here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        asked = self.spark.master.partition("[")[2].partition("]")[0].partition(",")[0]
        if self.spark.master == "local":
            return 1
        return int(asked) if asked.isdecimal() else here

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in one JVM on this machine."""
        return self.spark.master == "local" or self.spark.master.startswith("local[")
