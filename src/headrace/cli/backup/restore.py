"""``headrace backup restore``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.backup.options import Folder, To
from headrace.cli.errors import UsageError
from headrace.cli.session import Session
from headrace.cli.verb import verb

if TYPE_CHECKING:
    from headrace.broker.backup.folder import BackupFolder
    from headrace.broker.backup.manifest import Manifest

__all__ = ["restore"]


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
        typer.Option("--data", "-d", metavar="DIR", help="A new or empty directory for the broker."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="The last moment at or before it; -1h for an hour ago."),
    ] = None,
    to: To = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            "--offsets",
            metavar="TOPIC:PARTITION:OFFSET",
            help="End this partition there instead; may be repeated.",
        ),
    ] = None,
    unauthentic: Annotated[
        bool,
        typer.Option(
            "--accept-unauthentic",
            help="Restore although the backup has no MAC of the configured key (default: refuse).",
        ),
    ] = False,
) -> None:
    """Make a data directory out of a moment of a backup: the newest, unless --at or --to says otherwise.

    It has the topics with their ids, the records at their offsets, groups, producers and transactions; one that was
    open then is open or aborted, never half there. Each piece is held against its checksum. Interrupted, the
    same command goes on. Start a broker with --data on it, and give that one a new --backup folder.

    --offsets cuts single partitions further: to whole batches, and without regard to transactions that lie across.
    Groups that had read more are set back to the new end.

    With a key (broker.backup_key_file, or HEADRACE_BROKER__BACKUP_KEY) a moment without its MAC is refused, and so are
    pieces that the MAC does not cover. Without a key it is said whether there is a MAC.
    """
    from headrace.broker.backup.choosing import choose, cuts_of
    from headrace.broker.backup.restoring import Restoring
    from headrace.cli.backup.options import Progress, folder_of, shown_time
    from headrace.cli.moments import parse_moment
    from headrace.clock import SystemClock

    if data is None:
        raise UsageError("no directory is named to restore to", hint="give a new one with --data")
    if at is not None and to is not None:
        raise UsageError("--at and --to both name a moment", hint="give one of them")
    clock = SystemClock()
    found = folder_of(session, folder, accepts_unauthentic=unauthentic)
    at_ms = None if at is None else parse_moment(at, clock.now_ms()).ms
    manifest = choose(found, at_ms=at_ms, to=to)
    cuts = cuts_of(manifest, _parsed(offsets or ()))
    _warn_unless_authentic(session, found, manifest)
    moved = Progress(session, "restored", manifest.bytes()).moved
    report = Restoring(found, data, manifest, cuts, clock=clock, moved=moved).run()
    session.out.table(
        [
            {
                "moment": manifest.sequence,
                "time": shown_time(manifest.taken_ms),
                "topics": len(manifest.topics),
                "records": sum(
                    end - manifest.parts[place].start
                    for place, end in report.ends.items()
                    if place in manifest.parts
                ),
                "bytes": manifest.bytes(),
                "data": str(data),
            }
        ]
    )
    for group, topic, partition, before, after in report.set_back:
        session.out.note(f"group {group} is set back from {before} to {after} in {topic}-{partition}")
    for place, offset in cuts.items():
        if report.ends[place] < offset:
            session.out.note(
                f"{manifest.label(place)} ends at {report.ends[place]}, where the last whole batch before {offset} does"
            )
    for one in report.stale:
        session.out.warn(f"it could not be read when it was backed up: {one}")
    for one in report.archived:
        session.out.warn(
            f"in the archive and not in the backup: {one}; start the broker with the same archive"
        )
    for one in report.damage:
        session.out.warn(f"it was damaged already when it was backed up: {one}")


def _warn_unless_authentic(session: Session, folder: BackupFolder, manifest: Manifest) -> None:
    from headrace.broker.backup.authenticity import Authenticity

    found = folder.authenticity(manifest.name)
    if found is not Authenticity.AUTHENTIC:
        session.out.warn(
            f"moment {manifest.sequence} is not known to be authentic: {found.value};"
            " whoever can write to the folder can change what is restored"
        )


def _parsed(texts: Sequence[str]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for text in texts:
        topic, _, rest = text.partition(":")
        partition, _, offset = rest.partition(":")
        if not topic or not partition.isdecimal() or not offset.isdecimal():
            raise UsageError(
                f"--offsets {text!r} is not TOPIC:PARTITION:OFFSET", hint="for example orders:0:1200"
            )
        found[topic, int(partition)] = int(offset)
    return found
