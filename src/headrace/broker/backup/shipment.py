"""Copies the new bytes of a log to the backup folder, in a thread, one mebibyte at a time.

A piece is a file with the bytes that were appended since the last round. Eight adjacent pieces of the same level are
merged into one piece of the next level, with bytes from the log, not from the folder. So even a large segment has only
a few dozen pieces, and each byte is written about once per level. The maximum size of a piece is 64 MiB.

The checksums of the replaced pieces are compared with the merged bytes. This detects damage on the broker's disk, and
damaged bytes never replace a good copy.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Part, Piece, SegmentCopy, StateCopy
from headrace.broker.backup.plan import Plan, PlannedSegment
from headrace.checksum import crc32c
from headrace.errors import ArchiveUnavailable, StorageError
from headrace.files import File
from headrace.log.archived_segment import ArchivedSegment
from headrace.log.pace import Pace
from headrace.log.scan import ReadableFile

__all__ = ["Shipment", "SourceUnreadable", "Stopped"]

PIECE_BYTES_MAX = 64 << 20
MERGED = 8
_CHUNK_BYTES = 1 << 20


class Stopped(Exception):
    """The copy was interrupted, because the broker stops."""


class SourceUnreadable(StorageError):
    """A file of the log is damaged or cannot be read."""

    code = "HR-BACKUP-SOURCE"


@dataclass(slots=True)
class Shipment:
    folder: BackupFolder
    sequence: int
    """The sequence number of the manifest that will list the pieces."""
    run_id: str
    pace: Pace
    stop_event: threading.Event
    written_bytes: int = 0
    differing: list[str] = field(default_factory=list)
    """Paths of segments that differ from their copies in the folder."""
    archive_failure: SourceUnreadable | None = None
    """The error if the backup could not copy an archived segment."""
    _archive_error: str | None = None
    """The error if the archive is unavailable. This round does not read the archive again."""

    def ship(self, plan: Plan) -> Part:
        from_archive, archived = self._archived(plan)
        local = (self._segment(plan.log_id, planned, planned.file) for planned in plan.segments)
        segments = (*from_archive, *local)
        state = plan.copied_state
        if plan.state_file is not None and plan.signature.state is not None:
            state = self._state(plan.log_id, plan.state_file, plan.signature.state[1])
        compacted = plan.signature.compacted
        mark = plan.mark
        return Part(
            start=mark.start_offset,
            end=mark.synced_offset,
            segment=mark.segment,
            position=mark.position,
            segments=segments,
            synced=plan.synced,
            state=state,
            compacted=(compacted.clean_offset, compacted.tombstones_removed_below, compacted.next_horizon_ms),
            archived=archived,
        )

    def _archived(self, plan: Plan) -> tuple[list[SegmentCopy], tuple[tuple[int, int, int, int], ...]]:
        """Copy the archived segments. Returns the copies, and the entries of the segments that could not be copied.

        The newest segments are copied first, because a restored log must not have a gap before the segments on disk.
        """
        segments: list[SegmentCopy] = []
        for index in reversed(range(len(plan.archived))):
            try:
                segments.append(self._from_archive(plan.log_id, *plan.archived[index]))
            except SourceUnreadable as error:
                self.archive_failure = error
                return segments[::-1], tuple(segment.entry for segment, _ in plan.archived[: index + 1])
        return segments[::-1], ()

    def _from_archive(self, log_id: str, segment: ArchivedSegment, planned: PlannedSegment) -> SegmentCopy:
        if not planned.missing_bytes:
            return SegmentCopy(segment.base_offset, planned.copied_pieces)
        if self._archive_error is not None:
            # Each attempt could wait for a full timeout and delay the copies of the other logs.
            raise _unreadable(segment.path, self._archive_error)
        try:
            file = segment.open_file()
            try:
                return self._segment(log_id, planned, file)
            finally:
                file.close()
        except ArchiveUnavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                self._archive_error = f"not read in this round: {error.message}"
            raise _unreadable(segment.path, error.message) from error

    def _segment(self, log_id: str, planned: PlannedSegment, file: ReadableFile | None) -> SegmentCopy:
        base, known = planned.segment.base_offset, planned.copied_pieces
        if file is None:
            return SegmentCopy(base, known)
        if known and not self._matches_copy(file, planned, known):
            self.differing.append(f"{planned.segment.path}")
            known = ()
        target = _merge_last([*known, *_new_pieces(known[-1].end if known else 0, planned.size)])
        return SegmentCopy(
            base,
            tuple(piece if piece.file else self._piece(log_id, base, file, piece, known) for piece in target),
        )

    def _matches_copy(self, file: ReadableFile, planned: PlannedSegment, known: Sequence[Piece]) -> bool:
        if known[-1].end > planned.size:
            return False
        compare_from = planned.compare_from
        return compare_from is None or all(
            self._crc(file, piece) == piece.crc for piece in known if piece.end > compare_from
        )

    def _crc(self, file: ReadableFile, piece: Piece) -> int:
        crc = 0
        for chunk in self._chunks(file, piece.at, piece.end):
            crc = crc32c(chunk, crc)
        return crc

    def _piece(
        self, log_id: str, base: int, file: ReadableFile, target: Piece, known: Sequence[Piece]
    ) -> Piece:
        name = f"{base:020d}-{target.at:012d}-{self.sequence:010d}-{self.run_id}.piece"
        replaced = [piece for piece in known if target.at <= piece.at and piece.end <= target.end]
        crcs = _Crcs(replaced)
        sha256 = hashlib.sha256()

        def checked_chunks() -> Iterator[bytes]:
            for chunk in self._chunks(file, target.at, target.end):
                crcs.add(chunk)
                sha256.update(chunk)
                yield chunk
            different = crcs.first_difference
            if different is not None:
                raise SourceUnreadable(
                    f"bytes {different.at} to {different.end - 1} of {file.path} have changed since they were copied to"
                    " the backup",
                    hint="check the disk, which may be failing; the backup retains its older copy",
                )

        self.folder.write(self.folder.piece(log_id, name), checked_chunks())
        self.written_bytes += target.size
        return Piece(name, target.at, target.size, crcs.all, target.level, sha256.hexdigest())

    def _state(self, log_id: str, file: File, offset: int) -> StateCopy:
        try:
            raw = file.pread(file.size(), 0)
        except OSError as error:
            raise _unreadable(file.path, str(error)) from error
        name = f"{offset:020d}-{self.sequence:010d}-{self.run_id}.state"
        self.folder.write(self.folder.piece(log_id, name), [raw])
        self.written_bytes += len(raw)
        return StateCopy(name, offset, len(raw), crc32c(raw), hashlib.sha256(raw).hexdigest())

    def _chunks(self, file: ReadableFile, position: int, end: int) -> Iterator[bytes]:
        while position < end:
            if self.stop_event.is_set():
                raise Stopped
            try:
                chunk = file.pread(min(_CHUNK_BYTES, end - position), position)
            except OSError as error:
                raise _unreadable(file.path, str(error)) from error
            if not chunk:
                raise _unreadable(file.path, f"the file ends at byte {position} instead of {end}")
            position += len(chunk)
            self.pace.throttle(len(chunk))
            yield chunk
            self.pace.pause_if_due()


class _Crcs:
    """The checksum of a range of bytes, and of each known piece in the range.

    The known pieces are adjacent and begin at the start of the range.
    """

    def __init__(self, known: Sequence[Piece]) -> None:
        self.all = 0
        self._pieces = list(known)
        self._index = 0
        self._piece_crc = 0
        self._bytes_left = self._pieces[0].size if self._pieces else 0
        self.first_difference: Piece | None = None
        """The first known piece whose checksum differs."""

    def add(self, chunk: bytes) -> None:
        self.all = crc32c(chunk, self.all)
        view = memoryview(chunk)
        while view and self._index < len(self._pieces):
            part = view[: self._bytes_left]
            self._piece_crc = crc32c(part, self._piece_crc)
            self._bytes_left -= len(part)
            view = view[len(part) :]
            if not self._bytes_left:
                self._close()

    def _close(self) -> None:
        piece = self._pieces[self._index]
        if self._piece_crc != piece.crc and self.first_difference is None:
            self.first_difference = piece
        self._index += 1
        self._piece_crc = 0
        if self._index < len(self._pieces):
            self._bytes_left = self._pieces[self._index].size


def _new_pieces(at: int, end: int) -> Iterator[Piece]:
    """Yield the missing bytes as pieces that have no file yet."""
    while at < end:
        size = min(PIECE_BYTES_MAX, end - at)
        yield Piece("", at, size, 0)
        at += size


def _merge_last(pieces: list[Piece]) -> list[Piece]:
    """Merge the last pieces into one if enough of them have the same level."""
    while len(pieces) >= MERGED:
        last = pieces[-MERGED:]
        size = sum(piece.size for piece in last)
        if len({piece.level for piece in last}) > 1 or size > PIECE_BYTES_MAX or last[-1].file:
            return pieces
        pieces = [*pieces[:-MERGED], Piece("", last[0].at, size, 0, last[0].level + 1)]
    return pieces


def _unreadable(path: Path | str, reason: str) -> SourceUnreadable:
    return SourceUnreadable(
        f"cannot copy {path} to the backup: {reason}",
        hint="check the disk or the archive; the backup retains its older copy",
    )
