"""Whether what is in a folder is what was written: every piece that a moment needs, held against its checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from headrace.broker.backup.errors import BackupDamaged, NoSuchMoment
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Manifest, ManifestName
from headrace.broker.backup.reading import DamagedPiece, PieceReader

__all__ = ["CheckReport", "check"]


@dataclass(slots=True)
class CheckReport:
    manifest: Manifest
    files: int = 0
    bytes: int = 0
    damaged: list[DamagedPiece] = field(default_factory=list)
    manifests_damaged: list[str] = field(default_factory=list)
    whole: ManifestName | None = None
    """The newest moment, at or before the one that was asked for, of which every piece is good."""


def check(
    folder: BackupFolder, manifest: Manifest, moved: Callable[[int], None] = lambda count: None
) -> CheckReport:
    report = CheckReport(manifest)
    checker = _Checker(folder, moved)
    report.damaged = checker.damaged_of(manifest)
    report.files, report.bytes = len(checker.known), checker.bytes
    if not report.damaged:
        report.whole = manifest.name
        return report
    names = folder.names()
    for name in reversed([one for one in names if one.sequence < manifest.sequence]):
        try:
            earlier = folder.load(name, names)
        except (BackupDamaged, NoSuchMoment) as error:
            report.manifests_damaged.append(error.message)
            continue
        if earlier.complete and not checker.damaged_of(earlier, is_enough=1):
            report.whole = name
            break
    return report


class _Checker:
    """Looks at each file once, however many moments need it."""

    def __init__(self, folder: BackupFolder, moved: Callable[[int], None]) -> None:
        self._folder = folder
        self._tell = moved
        self.bytes = 0
        self.known: dict[tuple[str, str], DamagedPiece | None] = {}

    def _moved(self, count: int) -> None:
        self.bytes += count
        self._tell(count)

    def damaged_of(self, manifest: Manifest, is_enough: int | None = None) -> list[DamagedPiece]:
        reader = PieceReader(self._folder, manifest, self._moved)
        found: list[DamagedPiece] = []
        for place, part in manifest.parts.items():
            for run in part.segments:
                for piece in run.pieces:
                    self._look(place, piece.file, partial(reader.read, place, run, piece), found)
            if (state := part.state) is not None:
                self._look(place, state.file, partial(reader.state, place, state), found)
            if is_enough is not None and len(found) >= is_enough:
                return found
        return found

    def _look(self, place: str, file: str, read: Callable[[], object], found: list[DamagedPiece]) -> None:
        key = (place, file)
        if key not in self.known:
            try:
                read()
                self.known[key] = None
            except DamagedPiece as error:
                self.known[key] = error
        if (damaged := self.known[key]) is not None:
            found.append(damaged)
