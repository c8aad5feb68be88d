"""Which moment is meant, and where single partitions are to end."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.backup.errors import BackupDamaged, BackupError, NoSuchMoment
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Manifest

__all__ = ["choose", "cuts_of"]

_LIST = "headrace backup list FOLDER shows the moments that there are"


def choose(folder: BackupFolder, *, at_ms: int | None = None, to: str | None = None) -> Manifest:
    """The moment with that number, the last one at or before that time, or the last of all. Only a damaged manifest
    that was meant by its number is in the way: otherwise the one before it is as good an answer, and a later one none.
    """
    folder.expect()
    names = folder.names()
    damaged: BackupDamaged | None = None
    first_ms = 0
    for name in reversed(names):
        if to is not None and to not in (str(name.sequence), name.file):
            continue
        try:
            found = folder.load(name, names)
        except BackupDamaged as error:
            if to is not None:
                raise
            damaged = damaged or error
            continue
        except NoSuchMoment:
            # Let go of between the list and the look at it.
            continue
        if at_ms is not None and found.taken_ms > at_ms:
            first_ms = found.taken_ms
            continue
        if found.complete:
            return found
    if damaged is not None:
        raise damaged
    if to is not None:
        raise NoSuchMoment(f"there is no manifest {to} in {folder.path}", hint=_LIST)
    if first_ms:
        raise NoSuchMoment(
            f"the first moment in {folder.path} is {first_ms}, and {at_ms} is before it (ms since 1970)",
            hint=_LIST,
        )
    raise NoSuchMoment(
        f"the backup in {folder.path} has no moment yet: its first copy was never finished",
        hint="start the broker with the folder again, and wait until headrace backup status shows one",
    )


def cuts_of(manifest: Manifest, offsets: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Places with the offsets at which they are to end."""
    cuts: dict[str, int] = {}
    for (topic, partition), offset in offsets.items():
        place = manifest.place(topic, partition)
        if place is None:
            raise BackupError(
                f"manifest {manifest.sequence} has no partition {partition} of topic {topic!r}",
                hint="name one that it has, or another moment",
            )
        part = manifest.parts[place]
        first = max(part.start, part.segments[0].base_offset)
        if not first <= offset <= part.end:
            raise BackupError(
                f"{topic}-{partition} has offsets {first} to {part.end} in manifest {manifest.sequence},"
                f" and cannot end at {offset}",
                hint="give an offset in that range, or another moment",
            )
        cuts[place] = offset
    return cuts
