"""``headrace backup``: list, check and restore the restore points of a broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import UsageError
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb

if TYPE_CHECKING:
    from headrace.broker.backup.folder import BackupFolder
    from headrace.broker.backup.manifest import Manifest

__all__ = ["command"]


_EVERY_S = 2.0

Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="FOLDER",
        help="The broker's --backup folder (default: the setting broker.backup).",
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="N", help="Number of the restore point; see headrace backup list."),
]


def open_backup(session: Session, folder: Path | None, *, accepts_unauthentic: bool = False) -> BackupFolder:
    from headrace.broker.backup.folder import BackupFolder
    from headrace.broker.backup.manifest import read_key

    broker = session.loaded.settings.broker
    path = folder or broker.backup
    if path is None:
        raise UsageError("no backup folder", hint="name the folder, or set broker.backup")
    key = read_key(broker)
    return BackupFolder(path, key=key, accepts_unauthentic=accepts_unauthentic)


def format_time(ms: int) -> str:
    when = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


class Progress:
    """Prints a progress line every two seconds. An operation that takes less than two seconds prints no line."""

    def __init__(self, session: Session, action: str, total_bytes: int) -> None:
        self._session = session
        self._action = action
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._printed = time.monotonic()

    def advance(self, byte_count: int) -> None:
        self._done_bytes += byte_count
        now = time.monotonic()
        if now - self._printed >= _EVERY_S:
            self._printed = now
            share = min(100, 100 * self._done_bytes // max(self._total_bytes, 1))
            self._session.out.note(
                f"{self._action}: {self._done_bytes / 1e6:.0f} of {self._total_bytes / 1e6:.0f} MB, {share} %"
            )


@verb(
    "list",
    examples="""
    headrace backup list /mnt/backup
    headrace backup list /mnt/backup --json
    """,
    shared=("settings_file", "as_json", "quiet", "verbose"),
)
def list_restore_points(session: Session, folder: Folder = None) -> None:
    """List the restore points, oldest first.

    A restore point is a copy of the whole log as of one time: records, topics, groups and transactions.
    """
    from headrace.broker.backup.errors import BackupError

    backup_folder = open_backup(session, folder)
    backup_folder.require_owner()
    names = backup_folder.names()
    rows: list[dict[str, object]] = []
    for name in names:
        row: dict[str, object] = {"restore_point": name.sequence, "time": format_time(name.restore_point_ms)}
        try:
            manifest = backup_folder.load(name, names)
        except BackupError as error:
            unknown = dict.fromkeys(("topics", "records", "bytes", "archived_bytes"))
            rows.append(row | unknown | {"state": error.message})
            continue
        state = "restorable" if manifest.complete else "first copy, not finished"
        if manifest.stale:
            state += f"; outdated partitions: {', '.join(map(manifest.label, manifest.stale))}"
        rows.append(
            row
            | {
                "time": format_time(manifest.taken_ms),
                "topics": len(manifest.topics),
                "records": manifest.record_count(),
                "bytes": manifest.size_bytes(),
                "archived_bytes": sum(manifest.archived().values()),
                "state": state,
            }
        )
    session.out.table(rows, empty="no restore point yet: the first copy is not finished")


@verb(
    "status",
    examples="""
    headrace backup status /mnt/backup
    headrace backup status /mnt/backup -b 127.0.0.1:9092
    """,
)
def status(session: Session, folder: Folder = None) -> None:
    """Show the newest restore point, its age, and how many records it is behind.

    behind_records is the number of records that you would lose if the machine failed now. It is shown only if a broker
    is configured (-b, environment or headrace.toml). By default a running broker creates a restore point every ten
    seconds, and every minute while no records are written. If the newest restore point is older, the broker is not
    running or cannot write to the folder.
    """
    from headrace.broker.backup.restore_points import choose
    from headrace.clock import SystemClock

    backup_folder = open_backup(session, folder)
    newest = choose(backup_folder)
    has_broker = session.loaded.settings.log.bootstrap_servers is not None
    row = {
        "broker": newest.cluster_id,
        "restore_point": newest.sequence,
        "time": format_time(newest.taken_ms),
        "age_s": max(0, SystemClock().now_ms() - newest.taken_ms) // 1000,
        "behind_records": _behind(session, newest) if has_broker else None,
        "topics": len(newest.topics),
        "records": newest.record_count(),
        "bytes": newest.size_bytes(),
        "archived_bytes": sum(newest.archived().values()),
        "restore_points": len(backup_folder.names()),
    }
    session.out.table([row])
    if newest.stale:
        session.out.warn(
            "outdated or missing in this restore point, because files could not be read: partitions"
            f" {', '.join(map(newest.label, newest.stale))}"
        )
    if newest.archived():
        session.out.warn(
            "segments that could not be read from the archive are not in the backup: keep the archive as well"
        )


def _behind(session: Session, newest: Manifest) -> int:
    """Count the records of the log that the restore point does not contain."""

    cluster = session.cluster()
    behind = 0
    for topic in cluster.admin().list_topics(timeout=session.timeout_s).topics:
        starts, ends = cluster.starts(topic), cluster.ends(topic, committed=False)
        for partition, end in ends.items():
            log_id = newest.log_id(topic, partition)
            behind += max(0, end - (starts[partition] if log_id is None else newest.parts[log_id].end))
    return behind


@verb(
    "check",
    examples="""
    headrace backup check /mnt/backup
    headrace backup check /mnt/backup --to 4711
    """,
    shared=("settings_file", "as_json", "quiet", "verbose"),
)
def check(session: Session, folder: Folder = None, to: To = None) -> int:
    """Verify the checksum of every file of a restore point: the newest one, unless --to names another.

    For each damaged file, the command prints the offset up to which the partition can be restored. It also prints the
    newest undamaged restore point. If a file is damaged, the exit code is 1.
    """
    from headrace.broker.backup.restore_points import check as check_files
    from headrace.broker.backup.restore_points import choose

    backup_folder = open_backup(session, folder)
    manifest = choose(backup_folder, to=to)
    report = check_files(backup_folder, manifest, Progress(session, "checked", manifest.size_bytes()).advance)
    intact = None if report.intact is None else report.intact.sequence
    session.out.table(
        [
            {
                "restore_point": manifest.sequence,
                "time": format_time(manifest.taken_ms),
                "pieces": report.files,
                "bytes": report.bytes,
                "damaged": len(report.damaged),
                "newest_whole": intact,
            }
        ]
    )
    for partition, size in manifest.archived().items():
        session.out.note(
            f"not checked: {size} bytes of {manifest.label(partition)} are only in the archive, which could not be read"
        )
    for damage in report.damaged:
        session.out.warn(f"{damage.message}; {damage.detail}")
    for message in report.manifests_damaged:
        session.out.warn(message)
    return 1 if report.damaged else 0


@verb(
    "restore",
    examples="""
    headrace backup restore /mnt/backup --data ./restored
    headrace backup restore /mnt/backup --data ./restored --at 2026-11-15T09:30:00Z
    headrace backup restore /mnt/backup --data ./restored --to 4711
    headrace backup restore /mnt/backup --data ./restored --offsets orders:0:1200
    """,
    shared=("settings_file", "as_json", "quiet", "verbose"),
)
def restore(
    session: Session,
    folder: Folder = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", "-d", metavar="DIR", help="A new or empty data directory for the broker."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Restore the last restore point at or before this time; -1h is an hour ago.",
        ),
    ] = None,
    to: To = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            "--offsets",
            metavar="TOPIC:PARTITION:OFFSET",
            help="End this partition at this offset; may be repeated.",
        ),
    ] = None,
    unauthentic: Annotated[
        bool,
        typer.Option(
            "--accept-unauthentic",
            help="Restore even if the backup has no valid MAC for the configured key (default: fail).",
        ),
    ] = False,
) -> None:
    """Restore a data directory from a backup: the newest restore point, unless --at or --to selects another.

    It restores topics with their ids, records at their offsets, groups, producers and transactions. A transaction that
    was open at the restore point is open or aborted afterwards, never partly committed. The checksum of every file
    is checked. After an interruption, run the same command again to continue. Then start a broker with --data on the
    directory and a new --backup folder.

    --offsets ends single partitions earlier. A partition is cut between two batches, which can split a transaction.
    Groups whose committed offsets are beyond the new end are moved back to the new end.

    With a key (broker.backup_key_file, or HEADRACE_BROKER__BACKUP_KEY) the command rejects restore points without a
    valid MAC, and files that the MAC does not cover. Without a key it only reports whether a MAC exists.
    """
    from headrace.broker.backup.restore import Restore
    from headrace.broker.backup.restore_points import choose, chosen_ends_of
    from headrace.cli.offset_range import parse_timestamp
    from headrace.clock import SystemClock

    if data is None:
        raise UsageError("no directory to restore to", hint="name a new directory with --data")
    if at is not None and to is not None:
        raise UsageError("--at and --to cannot be combined", hint="use one of them")
    clock = SystemClock()
    backup_folder = open_backup(session, folder, accepts_unauthentic=unauthentic)
    at_ms = None if at is None else parse_timestamp(at, clock.now_ms()).ms
    manifest = choose(backup_folder, at_ms=at_ms, to=to)
    chosen_ends = chosen_ends_of(manifest, _parse_offsets(offsets or ()))
    _warn_unless_authentic(session, backup_folder, manifest)
    advance = Progress(session, "restored", manifest.size_bytes()).advance
    report = Restore(backup_folder, data, manifest, chosen_ends, clock=clock, on_read=advance).run()
    session.out.table(
        [
            {
                "restore_point": manifest.sequence,
                "time": format_time(manifest.taken_ms),
                "topics": len(manifest.topics),
                "records": sum(
                    end - manifest.parts[partition].start
                    for partition, end in report.ends.items()
                    if partition in manifest.parts
                ),
                "bytes": manifest.size_bytes(),
                "data": str(data),
            }
        ]
    )
    for group, topic, partition, before, after in report.reduced_offsets:
        session.out.note(f"group {group} moved back from {before} to {after} in {topic}-{partition}")
    for cut_partition, offset in chosen_ends.items():
        if report.ends[cut_partition] < offset:
            session.out.note(
                f"{manifest.label(cut_partition)} ends at {report.ends[cut_partition]},"
                f" at the end of the last batch before offset {offset}"
            )
    for label in report.stale:
        session.out.warn(f"files were not readable during the backup: {label}")
    for label in report.archived:
        session.out.warn(
            f"not in the backup, only in the archive: {label}; start the broker with the same archive"
        )
    for label in report.damage:
        session.out.warn(f"already damaged before the backup: {label}")


def _warn_unless_authentic(session: Session, folder: BackupFolder, manifest: Manifest) -> None:
    from headrace.broker.backup.manifest import Authenticity

    authenticity = folder.authenticity(manifest.name)
    if authenticity is not Authenticity.AUTHENTIC:
        session.out.warn(
            f"restore point {manifest.sequence} is not authenticated: {authenticity.value};"
            " anyone who can write to the folder can change what you restore"
        )


def _parse_offsets(texts: Sequence[str]) -> dict[tuple[str, int], int]:
    chosen_ends: dict[tuple[str, int], int] = {}
    for text in texts:
        topic, _, rest = text.partition(":")
        partition, _, offset = rest.partition(":")
        if not topic or not partition.isdecimal() or not offset.isdecimal():
            raise UsageError(
                f"--offsets {text!r} is not TOPIC:PARTITION:OFFSET", hint="for example orders:0:1200"
            )
        chosen_ends[topic, int(partition)] = int(offset)
    return chosen_ends


def command() -> CommandGroup:
    return command_group(
        "backup",
        "List, check and restore a broker's backups.",
        [list_restore_points, status, check, restore],
    )
