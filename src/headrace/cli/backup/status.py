"""``headrace backup status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.backup.options import Folder
from headrace.cli.session import Session
from headrace.cli.verb import verb

if TYPE_CHECKING:
    from headrace.broker.backup.manifest import Manifest

__all__ = ["status"]


@verb(
    "status",
    examples="""
    headrace backup status /mnt/backup
    headrace backup status /mnt/backup -b 127.0.0.1:9092
    """,
)
def status(session: Session, folder: Folder = None) -> None:
    """Show the newest moment, how old it is, and how many records it is behind.

    Records are told where brokers are named (-b, environment or headrace.toml): those that are there now and would be
    lost with the machine. While a broker runs it takes a moment every ten seconds, and one a minute when nothing
    is written, so an older one says that it does not run, or that the folder is away.
    """
    from headrace.broker.backup.choosing import choose
    from headrace.cli.backup.options import folder_of, shown_time
    from headrace.clock import SystemClock

    found = folder_of(session, folder)
    newest = choose(found)
    asks = session.loaded.settings.log.bootstrap_servers is not None
    row = {
        "broker": newest.cluster_id,
        "moment": newest.sequence,
        "time": shown_time(newest.taken_ms),
        "age_s": max(0, SystemClock().now_ms() - newest.taken_ms) // 1000,
        "behind_records": _behind(session, newest) if asks else None,
        "topics": len(newest.topics),
        "records": newest.records(),
        "bytes": newest.bytes(),
        "archived_bytes": sum(newest.archived().values()),
        "moments": len(found.names()),
    }
    session.out.table([row])
    if newest.stale:
        session.out.warn(
            f"their files cannot be read, so this moment has something older of them, or nothing:"
            f" {', '.join(map(newest.label, newest.stale))}"
        )
    if newest.archived():
        session.out.warn(
            "what could not be read from the archive is not in the backup: keep the archive as well"
        )


def _behind(session: Session, newest: Manifest) -> int:
    """How many records the log has that the moment has not."""
    from headrace.cli.settings import cluster_of

    cluster = cluster_of(session)
    behind = 0
    for topic in cluster.admin().list_topics(timeout=session.timeout_s).topics:
        starts, ends = cluster.starts(topic), cluster.ends(topic, committed=False)
        for partition, end in ends.items():
            place = newest.place(topic, partition)
            behind += max(0, end - (starts[partition] if place is None else newest.parts[place].end))
    return behind
