"""Finds the restore point that a user chooses, and verifies the checksums of all its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from headrace.broker.backup.errors import BackupDamaged, BackupError, NoSuchRestorePoint
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Manifest, ManifestName
from headrace.broker.backup.pieces import DamagedPiece, PieceReader

__all__ = ["CheckReport", "check", "choose", "chosen_ends_of"]

_LIST = "headrace backup list FOLDER shows the restore points"


def choose(folder: BackupFolder, *, at_ms: int | None = None, to: str | None = None) -> Manifest:
    """Return the restore point with the number or file name ``to``, or the last one at or before ``at_ms``.

    Without both, return the last restore point. Damaged manifests are skipped, unless ``to`` names one of them.
    """
    folder.require_owner()
    names = folder.names()
    damaged: BackupDamaged | None = None
    first_ms = 0
    for name in reversed(names):
        if to is not None and to not in (str(name.sequence), name.file):
            continue
        try:
            manifest = folder.load(name, names)
        except BackupDamaged as error:
            if to is not None:
                raise
            damaged = damaged or error
            continue
        except NoSuchRestorePoint:
            # The broker removed the manifest after the folder was listed.
            continue
        if at_ms is not None and manifest.taken_ms > at_ms:
            first_ms = manifest.taken_ms
            continue
        if manifest.complete:
            return manifest
    if damaged is not None:
        raise damaged
    if to is not None:
        raise NoSuchRestorePoint(f"{folder.path} has no restore point {to}", hint=_LIST)
    if first_ms:
        raise NoSuchRestorePoint(
            f"the first restore point in {folder.path} is at {first_ms}, after {at_ms} (ms since 1970)",
            hint=_LIST,
        )
    raise NoSuchRestorePoint(
        f"the backup in {folder.path} has no restore point: its first copy is incomplete",
        hint="start the broker with this backup folder, and wait until headrace backup status shows a restore point",
    )


def chosen_ends_of(manifest: Manifest, offsets: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return the offsets at which the user wants partitions to end, by log id. Raises if an offset is invalid."""
    chosen_ends: dict[str, int] = {}
    for (topic, partition), offset in offsets.items():
        log_id = manifest.log_id(topic, partition)
        if log_id is None:
            raise BackupError(
                f"restore point {manifest.sequence} has no partition {partition} of topic {topic!r}",
                hint="choose another partition or another restore point",
            )
        part = manifest.parts[log_id]
        first = max(part.start, part.segments[0].base_offset)
        if not first <= offset <= part.end:
            raise BackupError(
                f"{topic}-{partition} cannot end at {offset}: it has offsets {first} to {part.end} in restore point"
                f" {manifest.sequence}",
                hint="choose an offset in that range, or another restore point",
            )
        chosen_ends[log_id] = offset
    return chosen_ends


@dataclass(slots=True)
class CheckReport:
    manifest: Manifest
    files: int = 0
    bytes: int = 0
    damaged: list[DamagedPiece] = field(default_factory=list)
    manifests_damaged: list[str] = field(default_factory=list)
    intact: ManifestName | None = None
    """The newest intact restore point that is not newer than the checked restore point."""


def check(
    folder: BackupFolder, manifest: Manifest, on_read: Callable[[int], None] = lambda count: None
) -> CheckReport:
    report = CheckReport(manifest)
    checker = _Checker(folder, on_read)
    report.damaged = checker.damaged_of(manifest)
    report.files, report.bytes = len(checker.results), checker.bytes
    if not report.damaged:
        report.intact = manifest.name
        return report
    names = folder.names()
    for name in reversed([name for name in names if name.sequence < manifest.sequence]):
        try:
            earlier = folder.load(name, names)
        except (BackupDamaged, NoSuchRestorePoint) as error:
            report.manifests_damaged.append(error.message)
            continue
        if earlier.complete and not checker.damaged_of(earlier, stop_at=1):
            report.intact = name
            break
    return report


class _Checker:
    """Checks the files of restore points. It reads each file once, even if several restore points need the file."""

    def __init__(self, folder: BackupFolder, on_read: Callable[[int], None]) -> None:
        self._folder = folder
        self._on_read = on_read
        self.bytes = 0
        self.results: dict[tuple[str, str], DamagedPiece | None] = {}

    def _count(self, count: int) -> None:
        self.bytes += count
        self._on_read(count)

    def damaged_of(self, manifest: Manifest, stop_at: int | None = None) -> list[DamagedPiece]:
        reader = PieceReader(self._folder, manifest, self._count)
        damaged: list[DamagedPiece] = []
        for log_id, part in manifest.parts.items():
            for segment in part.segments:
                for piece in segment.pieces:
                    self._check(log_id, piece.file, partial(reader.read, log_id, segment, piece), damaged)
            if (state := part.state) is not None:
                self._check(log_id, state.file, partial(reader.state, log_id, state), damaged)
            if stop_at is not None and len(damaged) >= stop_at:
                return damaged
        return damaged

    def _check(self, log_id: str, file: str, read: Callable[[], object], damaged: list[DamagedPiece]) -> None:
        key = (log_id, file)
        if key not in self.results:
            try:
                read()
                self.results[key] = None
            except DamagedPiece as error:
                self.results[key] = error
        if (failure := self.results[key]) is not None:
            damaged.append(failure)
