"""Copying what is new of a partition to the folder; in a thread, a mebibyte at a time.

What was appended since the last round is a piece of its own. When eight neighbours of the same level are there, they
are written again as one of the next level, read from the log, not from the folder: so a segment has a few dozen pieces
at the most however long it grows, and each byte is written about once per level. A piece has at most 64 MiB.

What is joined is compared with the checksums of what it replaces. Damage of the broker's own disk is found by that, and
never takes the place of a good copy.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.backup.cut import Plan, PlannedRun
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Part, Piece, Run, StateCopy
from headrace.checksum import crc32c
from headrace.errors import ArchiveUnavailable, StorageError
from headrace.files import File
from headrace.log.archived_segment import ArchivedSegment
from headrace.log.pace import Pace
from headrace.log.scan import ReadableFile

__all__ = ["Shipping", "SourceUnreadable", "Stopped"]

PIECE_BYTES_MAX = 64 << 20
JOINED = 8
_CHUNK_BYTES = 1 << 20


class Stopped(Exception):
    """The broker stops, and has waited long enough."""


class SourceUnreadable(StorageError):
    """The log's own file does not give what it had."""

    code = "HR-BACKUP-SOURCE"


@dataclass(slots=True)
class Shipping:
    folder: BackupFolder
    sequence: int
    """Of the manifest that will name what is written."""
    run: str
    pace: Pace
    has_to_stop: threading.Event
    written_bytes: int = 0
    differing: list[str] = field(default_factory=list)
    """Segments of which the log has something else now than the folder had."""
    only_archived: SourceUnreadable | None = None
    """Why the backup has not got all of what lies in the archive."""
    _archive_trouble: str | None = None
    """Why the archive, which did not answer, is not read again in this round."""

    def ship(self, plan: Plan) -> Part:
        from_archive, archived = self._archived(plan)
        runs = (*from_archive, *(self._run(plan.place, one, one.file) for one in plan.runs))
        state = plan.state_known
        if plan.state_file is not None and plan.signature.state is not None:
            state = self._state(plan.place, plan.state_file, plan.signature.state[1])
        compacted = plan.signature.compacted
        mark = plan.mark
        return Part(
            start=mark.start_offset,
            end=mark.synced_offset,
            segment=mark.segment,
            position=mark.position,
            segments=runs,
            synced=plan.synced,
            state=state,
            compacted=(compacted.clean_offset, compacted.tombstones_removed_below, compacted.next_horizon_ms),
            archived=archived,
        )

    def _archived(self, plan: Plan) -> tuple[list[Run], tuple[tuple[int, int, int, int], ...]]:
        """What the folder has of it now, and what lies in the archive only. The newest first, because what is restored
        must go on without a gap to the partition's own files.
        """
        runs: list[Run] = []
        for at in reversed(range(len(plan.archived))):
            try:
                runs.append(self._from_archive(plan.place, *plan.archived[at]))
            except SourceUnreadable as error:
                self.only_archived = error
                return runs[::-1], tuple(segment.entry for segment, _ in plan.archived[: at + 1])
        return runs[::-1], ()

    def _from_archive(self, place: str, segment: ArchivedSegment, planned: PlannedRun) -> Run:
        if not planned.missing:
            return Run(segment.base_offset, planned.known)
        if self._archive_trouble is not None:
            # Each try may last as long as a time-out, and the others wait for it.
            raise _unreadable(segment.path, self._archive_trouble)
        try:
            file = segment.open_file()
            try:
                return self._run(place, planned, file)
            finally:
                file.close()
        except ArchiveUnavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                self._archive_trouble = f"not read in this round: {error.message}"
            raise _unreadable(segment.path, error.message) from error

    def _run(self, place: str, planned: PlannedRun, file: ReadableFile | None) -> Run:
        base, known = planned.segment.base_offset, planned.known
        if file is None:
            return Run(base, known)
        if known and not self._is_as_known(file, planned, known):
            self.differing.append(f"{planned.segment.path}")
            known = ()
        wanted = _joined([*known, *_fresh(known[-1].end if known else 0, planned.size)])
        return Run(
            base,
            tuple(one if one.file else self._piece(place, base, file, one, known) for one in wanted),
        )

    def _is_as_known(self, file: ReadableFile, planned: PlannedRun, known: Sequence[Piece]) -> bool:
        if known[-1].end > planned.size:
            return False
        doubted = planned.doubted_from
        return doubted is None or all(
            self._crc(file, piece) == piece.crc for piece in known if piece.end > doubted
        )

    def _crc(self, file: ReadableFile, piece: Piece) -> int:
        crc = 0
        for chunk in self._chunks(file, piece.at, piece.end):
            crc = crc32c(chunk, crc)
        return crc

    def _piece(
        self, place: str, base: int, file: ReadableFile, wanted: Piece, known: Sequence[Piece]
    ) -> Piece:
        name = f"{base:020d}-{wanted.at:012d}-{self.sequence:010d}-{self.run}.piece"
        replaced = [one for one in known if wanted.at <= one.at and one.end <= wanted.end]
        crcs = _Crcs(replaced)
        sha256 = hashlib.sha256()

        def watched() -> Iterator[bytes]:
            for chunk in self._chunks(file, wanted.at, wanted.end):
                crcs.add(chunk)
                sha256.update(chunk)
                yield chunk
            different = crcs.different()
            if different is not None:
                raise SourceUnreadable(
                    f"bytes {different.at} to {different.end - 1} of {file.path} are not what they were when they"
                    " were copied to the backup",
                    hint="the disk may be failing; what the backup has of it is kept",
                )

        self.folder.write(self.folder.piece(place, name), watched())
        self.written_bytes += wanted.size
        return Piece(name, wanted.at, wanted.size, crcs.all, wanted.level, sha256.hexdigest())

    def _state(self, place: str, file: File, offset: int) -> StateCopy:
        try:
            raw = file.pread(file.size(), 0)
        except OSError as error:
            raise _unreadable(file.path, str(error)) from error
        name = f"{offset:020d}-{self.sequence:010d}-{self.run}.state"
        self.folder.write(self.folder.piece(place, name), [raw])
        self.written_bytes += len(raw)
        return StateCopy(name, offset, len(raw), crc32c(raw), hashlib.sha256(raw).hexdigest())

    def _chunks(self, file: ReadableFile, position: int, end: int) -> Iterator[bytes]:
        while position < end:
            if self.has_to_stop.is_set():
                raise Stopped
            try:
                chunk = file.pread(min(_CHUNK_BYTES, end - position), position)
            except OSError as error:
                raise _unreadable(file.path, str(error)) from error
            if not chunk:
                raise _unreadable(file.path, f"it ends at byte {position}, and had {end}")
            position += len(chunk)
            self.pace.moved(len(chunk))
            yield chunk
            self.pace.breathe()


class _Crcs:
    """Checksums of a stretch of bytes, and of each known piece in it, which lie at its beginning, back to back."""

    def __init__(self, known: Sequence[Piece]) -> None:
        self.all = 0
        self._known = list(known)
        self._which = 0
        self._part = 0
        self._left = self._known[0].size if self._known else 0
        self._different: Piece | None = None

    def add(self, chunk: bytes) -> None:
        self.all = crc32c(chunk, self.all)
        view = memoryview(chunk)
        while view and self._which < len(self._known):
            taken = view[: self._left]
            self._part = crc32c(taken, self._part)
            self._left -= len(taken)
            view = view[len(taken) :]
            if not self._left:
                self._close()

    def _close(self) -> None:
        piece = self._known[self._which]
        if self._part != piece.crc and self._different is None:
            self._different = piece
        self._which += 1
        self._part = 0
        if self._which < len(self._known):
            self._left = self._known[self._which].size

    def different(self) -> Piece | None:
        return self._different


def _fresh(at: int, end: int) -> Iterator[Piece]:
    """What is missing, as pieces without a file."""
    while at < end:
        size = min(PIECE_BYTES_MAX, end - at)
        yield Piece("", at, size, 0)
        at += size


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The last few as one, where there are enough of the same level."""
    while len(pieces) >= JOINED:
        last = pieces[-JOINED:]
        size = sum(one.size for one in last)
        if len({one.level for one in last}) > 1 or size > PIECE_BYTES_MAX or last[-1].file:
            return pieces
        pieces = [*pieces[:-JOINED], Piece("", last[0].at, size, 0, last[0].level + 1)]
    return pieces


def _unreadable(path: Path | str, reason: str) -> SourceUnreadable:
    return SourceUnreadable(
        f"{path} cannot be copied to the backup: {reason}",
        hint="the disk may be failing; what the backup has of it is kept",
    )
