"""The settings that a command works with: its own options above everything else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.session import Session
from headrace.settings import Settings
from headrace.settings.loading import Flag

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster

__all__ = ["cluster_of", "settings_for"]


def settings_for(
    session: Session,
    *,
    data: Path | None = None,
    listen: str | None = None,
    master: str | None = None,
    verify_every: int | None = None,
    metrics: str | None = None,
    backup: Path | None = None,
    serve: str | None = None,
    pg_listen: str | None = None,
) -> Settings:
    return session.with_flags(
        Flag("data", data, "--data"),
        Flag("log.listen", listen, "--listen"),
        Flag("spark.master", master, "--master"),
        Flag("verify.every_s", verify_every, "--verify-every"),
        Flag("metrics.listen", metrics, "--metrics"),
        Flag("broker.backup", backup, "--backup"),
        Flag("serve.listen", serve, "--serve"),
        Flag("serve.pg_listen", pg_listen, "--pg-listen"),
    ).settings


def cluster_of(session: Session) -> Cluster:
    """The log that the command works with; topics that it makes are copied as is set."""
    from headrace.client.cluster import Cluster

    replication = session.loaded.settings.topics.replication
    return Cluster(session.bootstrap, session.properties, session.timeout_s, replication)
