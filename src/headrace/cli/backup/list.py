"""``headrace backup list``."""

from __future__ import annotations

from headrace.cli.backup.options import Folder
from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["list_moments"]


@verb(
    "list",
    examples="""
    headrace backup list /mnt/backup
    headrace backup list /mnt/backup --json
    """,
    shared=("settings_file", "as_json", "quiet", "verbose"),
)
def list_moments(session: Session, folder: Folder = None) -> None:
    """List the moments that can be restored to, oldest first.

    A moment is the whole log as it was then: records, topics, groups, transactions.
    """
    from headrace.broker.backup.errors import BackupError
    from headrace.cli.backup.options import folder_of, shown_time

    found = folder_of(session, folder)
    found.expect()
    names = found.names()
    rows: list[dict[str, object]] = []
    for name in names:
        row: dict[str, object] = {"moment": name.sequence, "time": shown_time(name.moment_ms)}
        try:
            manifest = found.load(name, names)
        except BackupError as error:
            unknown = dict.fromkeys(("topics", "records", "bytes", "archived_bytes"))
            rows.append(row | unknown | {"state": error.message})
            continue
        state = "restorable" if manifest.complete else "first copy, not finished"
        if manifest.stale:
            state += f"; older in it: {', '.join(map(manifest.label, manifest.stale))}"
        rows.append(
            row
            | {
                "time": shown_time(manifest.taken_ms),
                "topics": len(manifest.topics),
                "records": manifest.records(),
                "bytes": manifest.bytes(),
                "archived_bytes": sum(manifest.archived().values()),
                "state": state,
            }
        )
    session.out.table(rows, empty="no moment yet: the first copy is not finished")
