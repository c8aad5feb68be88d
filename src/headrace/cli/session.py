"""One run of a command: its settings, its connection to the log, and its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.errors import UsageError
from headrace.cli.output import Output

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.client.cluster import Cluster
    from headrace.settings import Settings
    from headrace.settings.loader import Flag, Loaded

__all__ = ["Session", "connect_address", "parse_pairs"]

TIMEOUT_S = 10.0
_LOG_INFO = 6
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  no address to bind
_OPENED: list[Cluster] = []
"""Clusters that stay open until the process ends. librdkafka delivers responses in its own thread. Closing a client
while that thread exits caused segmentation faults after commands had completed."""


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Parse repeated ``key=value`` options. The last value of a key is used."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {pair!r} is not of the form key=value")
        values[key] = value
    return values


def connect_address(listen: str) -> str:
    """Return the address at which clients on this machine reach a broker that listens on ``listen``."""
    host, _, port = listen.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"


@dataclass(slots=True)
class Session:
    bootstrap: str
    properties: dict[str, str]
    verbose: bool
    out: Output = field(repr=False)
    loaded: Loaded
    """All settings and their origins, without the options of the verb."""
    _flags: tuple[Flag, ...]
    _file: Path | None
    _cluster: Cluster | None = None

    @property
    def timeout_s(self) -> float:
        """Timeout of one request: socket.timeout.ms if set, otherwise ten seconds."""
        timeout_ms = self.properties.get("socket.timeout.ms", "")
        return int(timeout_ms) / 1_000 if timeout_ms.isdecimal() else TIMEOUT_S

    def settings(
        self,
        *,
        data: Path | None = None,
        listen: str | None = None,
        master: str | None = None,
        verify_every: int | None = None,
        metrics: str | None = None,
        backup: Path | None = None,
        serve: str | None = None,
        pg_listen: str | None = None,
        alert_exec: str | None = None,
    ) -> Settings:
        """Load the settings again, with the options of the verb."""
        from headrace.settings.loader import Flag, load

        flags = (
            Flag("data", data, "--data"),
            Flag("log.listen", listen, "--listen"),
            Flag("spark.master", master, "--master"),
            Flag("verify.every_s", verify_every, "--verify-every"),
            Flag("metrics.listen", metrics, "--metrics"),
            Flag("broker.backup", backup, "--backup"),
            Flag("serve.listen", serve, "--serve"),
            Flag("serve.pg_listen", pg_listen, "--pg-listen"),
            Flag("alerts.exec", alert_exec, "--alert-exec"),
        )
        return load((*self._flags, *flags), file=self._file).settings

    def data_dir(self, data: Path | None) -> Path:
        return data or self.settings().data

    def cluster(self, *, check: bool = True) -> Cluster:
        """Connect to the log. With ``check``, fail at once if no broker accepts a connection."""
        if self._cluster is None:
            from headrace.cli.reach import check_reachable
            from headrace.client.cluster import Cluster

            if check:
                check_reachable(self.bootstrap)
            properties = {
                "socket.connection.setup.timeout.ms": "5000",
                **({"log_level": str(_LOG_INFO)} if self.verbose else {}),
                **self.properties,
            }
            replication = self.loaded.settings.topics.replication
            self._cluster = Cluster(self.bootstrap, properties, self.timeout_s, replication)
            _OPENED.append(self._cluster)
        return self._cluster

    def cluster_of(self, app: App, *, check: bool = True) -> Cluster:
        """Connect to the log of an app. Parts that an earlier release started keep the names of their topics."""
        from headrace.client.earlier_names import keep_earlier_names

        cluster = self.cluster(check=check)
        keep_earlier_names(cluster, app)
        return cluster

    @classmethod
    def begin(
        cls,
        *,
        bootstrap_servers: str | None,
        client_property: Sequence[str],
        as_json: bool,
        quiet: bool,
        verbose: bool,
        config: Path | None = None,
    ) -> Session:
        """Load the settings. -b overrides -X, which overrides the environment, the file and the default.

        Without the addresses of brokers, commands use the embedded broker at ``log.listen``.
        """
        # Imported here, because the import would slow down --help.
        from headrace.settings.loader import Flag, load

        properties = parse_pairs(client_property, "-X")
        from_property = properties.pop("bootstrap.servers", None)
        flags = (
            Flag("log.bootstrap_servers", from_property, "-X"),
            Flag("log.bootstrap_servers", bootstrap_servers, "-b"),
            Flag("log.properties", properties, "-X"),
        )
        loaded = load(flags, file=config)
        log = loaded.settings.log
        out = Output(as_json=as_json, quiet=quiet)
        bootstrap = log.bootstrap_servers or connect_address(log.listen)
        return cls(bootstrap, dict(log.properties), verbose, out, loaded, flags, config)
