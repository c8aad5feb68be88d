"""Reads pieces and verifies their checksums, and finds batches in a stream of a segment's bytes.

A piece is a file with consecutive bytes of a segment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from headrace.broker.backup.errors import BackupDamaged, BackupUnauthentic, NoSuchRestorePoint
from headrace.broker.backup.folder import BackupFolder, open_regular
from headrace.broker.backup.manifest import Manifest, Piece, SegmentCopy, StateCopy
from headrace.checksum import crc32c
from headrace.records import HEADER_SIZE, RecordError, read_header

__all__ = ["BatchScanner", "DamagedPiece", "PieceReader"]

_CHUNK_BYTES = 1 << 20


class DamagedPiece(BackupDamaged):
    """A piece is missing or damaged.

    ``intact_to`` is the offset up to which the partition can still be restored, or ``None`` if the restore point
    cannot be restored without the piece.
    """

    def __init__(self, label: str, path: str, reason: str, intact_to: int | None) -> None:
        topic, _, partition = label.rpartition("-")
        detail = "a restore needs the complete journal"
        if path.endswith(".state"):
            detail = "a restore needs this file: it has the state of producers and transactions"
        hint = "find the newest intact restore point with headrace backup check FOLDER, and restore it with --to NUMBER"
        if intact_to is not None:
            detail = f"the partition can be restored up to offset {intact_to}"
            hint += f"; or end the partition before the damage with --offsets {topic}:{partition}:{intact_to}"
        super().__init__(f"the piece {path} of {label} is damaged: {reason}", detail=detail, hint=hint)
        self.label = label
        self.path = path
        self.reason = reason
        self.intact_to = intact_to


class PieceReader:
    def __init__(self, folder: BackupFolder, manifest: Manifest, on_read: Callable[[int], None]) -> None:
        """Create a reader of the manifest's pieces. ``on_read`` is called with the number of bytes of each read."""
        self._folder = folder
        self._manifest = manifest
        self._on_read = on_read

    def segment(self, log_id: str, segment: SegmentCopy) -> Iterator[bytes]:
        """Yield a segment's bytes. If a piece is damaged, raise after the last byte of the piece."""
        for piece in segment.pieces:
            yield from self._piece(log_id, segment, piece)

    def state(self, log_id: str, state: StateCopy) -> bytes:
        as_piece = Piece(state.file, 0, state.size, state.crc, sha256=state.sha256)
        return b"".join(self._checked(log_id, as_piece, lambda: None))

    def read(self, log_id: str, segment: SegmentCopy, piece: Piece) -> None:
        """Read the whole piece. Raises if it is damaged."""
        for _ in self._piece(log_id, segment, piece):
            pass

    def _piece(self, log_id: str, segment: SegmentCopy, piece: Piece) -> Iterator[bytes]:
        return self._checked(log_id, piece, lambda: self._intact_to(log_id, segment, piece))

    def _checked(self, log_id: str, piece: Piece, intact_to: Callable[[], int | None]) -> Iterator[bytes]:
        path = self._folder.piece(log_id, piece.file)
        crc = size = 0
        sha256 = hashlib.sha256()
        if not piece.sha256 and self._folder.expects_authentic:
            raise BackupUnauthentic(
                f"the piece {path} of {self._manifest.label(log_id)} is not authentic: the manifest has no SHA-256 for"
                " it",
                hint="choose a newer restore point that was written with the key; headrace backup list FOLDER shows"
                " the restore points",
            )

        def damaged(reason: str) -> DamagedPiece:
            return DamagedPiece(self._manifest.label(log_id), str(path), reason, intact_to())

        try:
            with open_regular(path) as file:
                while size <= piece.size and (chunk := file.read(_CHUNK_BYTES)):
                    crc = crc32c(chunk, crc)
                    sha256.update(chunk)
                    size += len(chunk)
                    self._on_read(len(chunk))
                    if size <= piece.size:
                        yield chunk
        except FileNotFoundError as error:
            if all(name.sequence != self._manifest.sequence for name in self._folder.names()):
                raise NoSuchRestorePoint(
                    f"the broker has removed restore point {self._manifest.sequence} and its file {path}",
                    hint="choose another restore point with headrace backup list FOLDER; broker.backup_keep_s sets how"
                    " long the broker retains a restore point",
                ) from error
            raise damaged("the file does not exist") from error
        except OSError as error:
            raise damaged(f"the file cannot be read: {error}") from error
        if size != piece.size:
            prefix = "at least " if size > piece.size else ""
            raise damaged(f"the file has {prefix}{size} bytes instead of {piece.size}")
        if crc != piece.crc:
            raise damaged(f"the checksum is {crc:08x} instead of {piece.crc:08x}")
        if piece.sha256 and sha256.hexdigest() != piece.sha256:
            raise damaged("the SHA-256 does not match")

    def _intact_to(self, log_id: str, segment: SegmentCopy, damaged: Piece) -> int | None:
        """Return the end offset of the last complete batch before the damaged piece."""
        if "/" not in log_id:
            return None
        scanner = BatchScanner(segment.base_offset)
        for piece in segment.pieces:
            if piece.at >= damaged.at:
                break
            try:
                with open_regular(self._folder.piece(log_id, piece.file)) as file:
                    scanner.feed(file.read(piece.size))
            except OSError:
                break
        return max(scanner.end_offset, self._manifest.parts[log_id].start)


class BatchScanner:
    """Scans a stream of batches in chunks of any size.

    ``position`` and ``end_offset`` are the end of the last complete batch that ends at or before offset ``limit``.
    """

    def __init__(self, base_offset: int, limit: int | None = None) -> None:
        self.position = 0
        self.end_offset = base_offset
        self.is_over = False
        """True when the next bytes are beyond the limit or are not a batch."""
        self._limit = limit
        self._header = bytearray()
        self._bytes_left = 0
        self._size = 0
        self._next_offset = base_offset

    def feed(self, chunk: bytes) -> None:
        position = 0
        while position < len(chunk) and not self.is_over:
            if self._bytes_left:
                count = min(self._bytes_left, len(chunk) - position)
                position += count
                self._bytes_left -= count
                if not self._bytes_left:
                    self.position += self._size
                    self.end_offset = self._next_offset
                continue
            count = min(HEADER_SIZE - len(self._header), len(chunk) - position)
            self._header += chunk[position : position + count]
            position += count
            if len(self._header) == HEADER_SIZE:
                self._begin_batch()

    def _begin_batch(self) -> None:
        try:
            header = read_header(bytes(self._header))
        except RecordError:
            self.is_over = True
            return
        if header.base_offset != self.end_offset or (
            self._limit is not None and header.next_offset > self._limit
        ):
            self.is_over = True
            return
        self._header.clear()
        self._size, self._next_offset = header.size, header.next_offset
        self._bytes_left = header.size - HEADER_SIZE
        if not self._bytes_left:
            self.position += self._size
            self.end_offset = self._next_offset
