"""``headrace backup check``."""

from __future__ import annotations

from headrace.cli.backup.options import Folder, To
from headrace.cli.session import Session
from headrace.cli.verb import verb

__all__ = ["check"]


@verb(
    "check",
    examples="""
    headrace backup check /mnt/backup
    headrace backup check /mnt/backup --to 4711
    """,
    shared=("settings_file", "as_json", "quiet", "verbose"),
)
def check(session: Session, folder: Folder = None, to: To = None) -> int:
    """Read every piece that a moment needs, the newest unless --to names another, and hold it against its checksum.

    What is damaged is named with the offset up to which its partition can be restored, and so is the newest moment
    that is whole. The exit code is 1 then.
    """
    from headrace.broker.backup.checking import check as look
    from headrace.broker.backup.choosing import choose
    from headrace.cli.backup.options import Progress, folder_of, shown_time

    found = folder_of(session, folder)
    manifest = choose(found, to=to)
    report = look(found, manifest, Progress(session, "checked", manifest.bytes()).moved)
    whole = None if report.whole is None else report.whole.sequence
    session.out.table(
        [
            {
                "moment": manifest.sequence,
                "time": shown_time(manifest.taken_ms),
                "pieces": report.files,
                "bytes": report.bytes,
                "damaged": len(report.damaged),
                "newest_whole": whole,
            }
        ]
    )
    for place, size in manifest.archived().items():
        session.out.note(
            f"not looked at: {size} bytes of {manifest.label(place)} lie in the archive only, which could not be read"
        )
    for one in report.damaged:
        session.out.warn(f"{one.message}; {one.detail}")
    for message in report.manifests_damaged:
        session.out.warn(message)
    return 1 if report.damaged else 0
