"""Reading pieces, each held against its checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from headrace.broker.backup.batch_walk import BatchWalk
from headrace.broker.backup.errors import BackupDamaged, BackupUnauthentic, NoSuchMoment
from headrace.broker.backup.folder import BackupFolder, open_regular
from headrace.broker.backup.manifest import Manifest, Piece, Run, StateCopy
from headrace.checksum import crc32c

__all__ = ["DamagedPiece", "PieceReader"]

_CHUNK_BYTES = 1 << 20


class DamagedPiece(BackupDamaged):
    """``whole_to`` is the offset up to which the partition can be had all the same; ``None`` where it is needed."""

    def __init__(self, label: str, path: str, reason: str, whole_to: int | None) -> None:
        topic, _, partition = label.rpartition("-")
        about = "there is no part of a journal that could be done without"
        if path.endswith(".state"):
            about = "it tells of producers and transactions whose batches may be deleted"
        hint = "headrace backup check FOLDER finds the newest moment that is whole; --to takes its number"
        if whole_to is not None:
            about = f"up to offset {whole_to} it can be restored"
            hint += f"; or end this partition before it: --offsets {topic}:{partition}:{whole_to}"
        super().__init__(f"the piece {path} of {label} is damaged: {reason}", detail=about, hint=hint)
        self.label = label
        self.path = path
        self.reason = reason
        self.whole_to = whole_to


class PieceReader:
    def __init__(self, folder: BackupFolder, manifest: Manifest, moved: Callable[[int], None]) -> None:
        """``moved`` is told of every so many bytes that were read."""
        self._folder = folder
        self._manifest = manifest
        self._moved = moved

    def run(self, place: str, run: Run) -> Iterator[bytes]:
        """A segment's bytes; raises behind the last byte of a piece that is not what was written."""
        for piece in run.pieces:
            yield from self._piece(place, run, piece)

    def state(self, place: str, state: StateCopy) -> bytes:
        as_piece = Piece(state.file, 0, state.size, state.crc, sha256=state.sha256)
        return b"".join(self._checked(place, as_piece, lambda: None))

    def read(self, place: str, run: Run, piece: Piece) -> None:
        """Only to see whether it is good."""
        for _ in self._piece(place, run, piece):
            pass

    def _piece(self, place: str, run: Run, piece: Piece) -> Iterator[bytes]:
        return self._checked(place, piece, lambda: self._whole_to(place, run, piece))

    def _checked(self, place: str, piece: Piece, whole_to: Callable[[], int | None]) -> Iterator[bytes]:
        path = self._folder.piece(place, piece.file)
        crc = size = 0
        sha256 = hashlib.sha256()
        if not piece.sha256 and self._folder.expects_authentic:
            raise BackupUnauthentic(
                f"the piece {path} of {self._manifest.label(place)} is not authentic: no SHA-256 is in the manifest",
                hint="take a moment that a broker with the key has written since: headrace backup list FOLDER",
            )

        def damaged(reason: str) -> DamagedPiece:
            return DamagedPiece(self._manifest.label(place), str(path), reason, whole_to())

        try:
            with open_regular(path) as file:
                while size <= piece.size and (chunk := file.read(_CHUNK_BYTES)):
                    crc = crc32c(chunk, crc)
                    sha256.update(chunk)
                    size += len(chunk)
                    self._moved(len(chunk))
                    if size <= piece.size:
                        yield chunk
        except FileNotFoundError as error:
            if all(name.sequence != self._manifest.sequence for name in self._folder.names()):
                raise NoSuchMoment(
                    f"moment {self._manifest.sequence} is not kept any more, and {path} went with it",
                    hint="headrace backup list FOLDER shows the moments that there are; the broker that writes there"
                    " keeps them for broker.backup_keep_s",
                ) from error
            raise damaged("it is not there") from error
        except OSError as error:
            raise damaged(f"it cannot be read: {error}") from error
        if size != piece.size:
            more = "at least " if size > piece.size else ""
            raise damaged(f"it has {more}{size} bytes, and {piece.size} were written")
        if crc != piece.crc:
            raise damaged(f"its checksum is {crc:08x}, and was {piece.crc:08x} when it was written")
        if piece.sha256 and sha256.hexdigest() != piece.sha256:
            raise damaged("its SHA-256 is not what it was when it was written")

    def _whole_to(self, place: str, run: Run, damaged: Piece) -> int | None:
        """Where the last batch ends that lies wholly before a piece."""
        if "/" not in place:
            return None
        walk = BatchWalk(run.base_offset)
        for piece in run.pieces:
            if piece.at >= damaged.at:
                break
            try:
                with open_regular(self._folder.piece(place, piece.file)) as file:
                    walk.feed(file.read(piece.size))
            except OSError:
                break
        return max(walk.end_offset, self._manifest.parts[place].start)
