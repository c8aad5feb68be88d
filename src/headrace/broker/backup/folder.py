"""The folder of a backup. It can be a mounted object store.

    FOLDER/backup.json                            the owner; written once
    FOLDER/manifests/…                            one file per restore point (``manifest``)
    FOLDER/pieces/<log id>/<segment's base offset, 20 digits>-<first byte, 12 digits>-<sequence, 10 digits>-<run>.piece
    FOLDER/pieces/<log id>/<offset, 20 digits>-<sequence, 10 digits>-<run>.state

A *log id* is ``metadata``, ``groups``, or ``<topic id>/<partition>``. The sequence number is that of the first manifest
that lists the file. ``<run>`` is a random id that the broker creates at each start. So two writers never use the same
name.

The folder needs only operations that every mount supports: list, read and remove files, create a file with the suffix
``.new``, sync it, and rename it. The broker never overwrites a file, and uses neither locks nor file times. If a crash
leaves a ``.new`` file, the next start removes it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.broker.backup.errors import (
    BackupDamaged,
    BackupError,
    BackupUnauthentic,
    BackupUnavailable,
    NoSuchRestorePoint,
)
from headrace.broker.backup.manifest import (
    FORMAT,
    Authenticity,
    Manifest,
    ManifestName,
    authenticity_of_manifest,
    decode,
    encode,
)
from headrace.files import Buffer, File, Files, SystemFiles

__all__ = ["NEW", "BackupFolder", "Owner", "open_regular", "sequence_of"]

_MANIFESTS, _PIECES, _IDENTITY = "manifests", "pieces", "backup.json"
NEW = ".new"
_IDENTITY_BYTES_MAX = 1 << 16
_MANIFEST_BYTES_MAX = 1 << 30
_SEQUENCE = re.compile(r"-(\d{10})-([0-9a-f]{8})\.(?:piece|state)")
# The errors of file systems that cannot sync a directory. On these, a rename is durable without it.
_NO_DIR_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF)


class Owner(msgspec.Struct, frozen=True):
    """The broker and the data directory to which the backup belongs."""

    format: int
    cluster_id: str
    line: str
    """The id of the data directory's *line*, which is its history of writes. A restore begins a new line."""


class BackupFolder:
    """The backup folder.

    With a ``key``, new manifests get a MAC. Reading a manifest without a valid MAC then fails, unless
    ``accepts_unauthentic`` is true.
    """

    def __init__(
        self,
        path: Path,
        files: Files | None = None,
        *,
        key: bytes | None = None,
        accepts_unauthentic: bool = False,
    ) -> None:
        self.path = path
        self._files = files or SystemFiles()
        self._key = key
        self._accepts_unauthentic = accepts_unauthentic
        self._existing_directories: set[Path] = set()

    @property
    def has_key(self) -> bool:
        return self._key is not None

    @property
    def expects_authentic(self) -> bool:
        return self._key is not None and not self._accepts_unauthentic

    @property
    def manifests(self) -> Path:
        return self.path / _MANIFESTS

    def piece(self, log_id: str, file: str) -> Path:
        return self.path / _PIECES / log_id / file

    # Owner

    def owner(self) -> Owner | None:
        """Return the owner, or ``None`` if the folder has no backup.

        Raises ``BackupUnavailable`` if the folder does not exist.
        """
        try:
            with open_regular(self.path / _IDENTITY) as file:
                raw = file.read(_IDENTITY_BYTES_MAX)
        except FileNotFoundError:
            if self.path.is_dir():
                return None
            raise BackupUnavailable(f"the backup folder {self.path} does not exist", hint=_MOUNT) from None
        except OSError as error:
            raise BackupUnavailable(
                f"cannot read the backup folder {self.path}: {error}", hint=_MOUNT
            ) from error
        try:
            owner = msgspec.json.decode(raw, type=Owner)
        except msgspec.MsgspecError as error:
            raise BackupDamaged(
                f"{self.path / _IDENTITY} is invalid: {error}",
                hint="restore this file from a copy, or create it again with the fields format, cluster_id and line of"
                " any manifest",
            ) from error
        if owner.format > FORMAT:
            raise BackupError(
                f"the backup in {self.path} has format {owner.format}; this release supports up to {FORMAT}",
                hint="use the release that wrote it, or a later one",
            )
        return owner

    def require_owner(self) -> Owner:
        """Like ``owner``, but raise if the folder has no backup."""
        owner = self.owner()
        if owner is None:
            raise NoSuchRestorePoint(
                f"{self.path} has no backup",
                hint="use the folder that was set with the broker's --backup",
            )
        return owner

    def claim(self, owner: Owner) -> None:
        self.write(self.path / _IDENTITY, [msgspec.json.encode(owner) + b"\n"])

    # Manifests

    def names(self) -> list[ManifestName]:
        """Return the names of all manifests, oldest first."""
        try:
            files = [path.name for path in self.manifests.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in map(ManifestName.parse, files) if name is not None)

    def load(
        self, name: ManifestName, names: list[ManifestName] | None = None, *, authentic: bool | None = None
    ) -> Manifest:
        """Return the full manifest of a restore point. ``authentic`` determines whether it must have a valid MAC; by
        default, ``expects_authentic`` does.
        """
        authentic = self.expects_authentic if authentic is None else authentic
        manifest = self._read(name, authentic)
        if manifest.base is None:
            return manifest
        return manifest.completed_by(
            self._base(manifest, self.names() if names is None else names, authentic)
        )

    def _base(self, manifest: Manifest, names: list[ManifestName], authentic: bool) -> Manifest:
        for other in names:
            if other.sequence == manifest.base and other.base == other.sequence:
                base = self._read(other, authentic)
                if base.line == manifest.line:
                    return base
        raise BackupDamaged(
            f"the base manifest {manifest.base} of the manifest {manifest.name.file} is missing",
            hint="headrace backup check FOLDER finds the newest intact restore point",
        )

    def authenticity(self, name: ManifestName) -> Authenticity:
        """Return the authenticity of a restore point: the worse one of its manifest and its base manifest."""
        manifest = self._read(name, authentic=False)
        names = [name]
        if manifest.base is not None:
            names.append(self._base(manifest, self.names(), authentic=False).name)
        levels = {authenticity_of_manifest(self._read_bytes(each), self._key) for each in names}
        worst_first = (
            Authenticity.WRONG,
            Authenticity.MISSING,
            Authenticity.UNCHECKED,
            Authenticity.AUTHENTIC,
        )
        return next(level for level in worst_first if level in levels)

    def _read(self, name: ManifestName, authentic: bool) -> Manifest:
        path = self.manifests / name.file
        raw = self._read_bytes(name)
        if (
            authentic
            and (authenticity := authenticity_of_manifest(raw, self._key)) is not Authenticity.AUTHENTIC
        ):
            raise BackupUnauthentic(
                f"the manifest {path} is not authentic: {authenticity.value}",
                hint="check broker.backup_key; headrace backup list FOLDER shows which restore points are authentic",
            )
        manifest = decode(raw, str(path))
        if manifest.name != name:
            raise BackupDamaged(
                f"the manifest {path} is damaged: it has the content of {manifest.name.file}",
                hint="headrace backup check FOLDER finds the newest intact restore point",
            )
        return manifest

    def _read_bytes(self, name: ManifestName) -> bytes:
        path = self.manifests / name.file
        try:
            with open_regular(path) as file:
                raw = file.read(_MANIFEST_BYTES_MAX + 1)
        except FileNotFoundError as error:
            raise NoSuchRestorePoint(
                f"the manifest {path} does not exist",
                hint="headrace backup list FOLDER shows the restore points",
            ) from error
        except OSError as error:
            raise BackupDamaged(f"cannot read the manifest {path}: {error}") from error
        if len(raw) > _MANIFEST_BYTES_MAX:
            raise BackupDamaged(f"the manifest {path} is too large (limit {_MANIFEST_BYTES_MAX} bytes)")
        return raw

    def add(self, manifest: Manifest) -> None:
        self.write(self.manifests / manifest.name.file, [encode(manifest, self._key)])

    # Files

    def write(self, path: Path, chunks: Iterable[Buffer]) -> None:
        """Write a new file under a temporary name, and rename it when it is durable. If this fails, remove the file."""
        self.create_directory(path.parent)
        new_path = path.with_name(path.name + NEW)
        if self._files.exists(new_path):
            self._files.remove(new_path)
        file = self._files.open(new_path, create=True)
        try:
            try:
                self._fill(file, chunks)
                file.sync()
            finally:
                file.close()
            self._files.rename(new_path, path)
        except BaseException:
            # On a full disk, an incomplete file would use space that other files need.
            with suppress(OSError):
                self._files.remove(new_path)
            raise
        self.sync_dir(path.parent)

    @staticmethod
    def _fill(file: File, chunks: Iterable[Buffer]) -> None:
        position = 0
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                written = file.pwrite([view], position)
                if written <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))
                position += written
                view = view[written:]

    def create_directory(self, directory: Path) -> None:
        """Create a directory and its parents below the backup folder. The backup folder must exist."""
        if directory in self._existing_directories:
            return
        if directory != self.path:
            self.create_directory(directory.parent)
            self._files.make_dir(directory)
            self.sync_dir(directory.parent)
        elif not self._files.exists(directory):
            raise FileNotFoundError(errno.ENOENT, "the backup folder does not exist", str(directory))
        self._existing_directories.add(directory)

    def forget_directories(self) -> None:
        """Forget which directories exist, because the mount may have changed."""
        self._existing_directories.clear()

    def sync_dir(self, directory: Path) -> None:
        try:
            self._files.sync_dir(directory)
        except OSError as error:
            if error.errno not in _NO_DIR_SYNC:
                raise

    def piece_sizes(self) -> dict[tuple[str, str], int]:
        """Return the size of every file below ``pieces``, by log id and file name."""
        root = self.path / _PIECES
        sizes: dict[tuple[str, str], int] = {}
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            with suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    sizes[path.parent.relative_to(root).as_posix(), path.name] = status.st_size
        return sizes

    def leftovers(self) -> Iterator[Path]:
        """Yield the temporary files that a crash left."""
        for directory in (self.path, self.manifests, self.path / _PIECES):
            if directory.is_dir():
                glob = directory.rglob if directory.name == _PIECES else directory.glob
                yield from glob(f"*{NEW}")

    def remove(self, path: Path) -> None:
        """Remove the file if it exists."""
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return

    def remove_empty_log(self, log_id: str) -> None:
        """Remove the empty directories of a log. Failures are ignored, because object stores have no directories."""
        directory = self.path / _PIECES / log_id
        for empty in (directory, directory.parent):
            self._existing_directories.discard(empty)
            try:
                self._files.remove_dir(empty)
            except OSError:
                return


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Other files are refused: a link could lead out of the folder, and reading a pipe or a device might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def sequence_of(file: str) -> int | None:
    """Return the sequence number in a piece's file name. It is that of the first manifest that lists the piece."""
    match = _SEQUENCE.search(file)
    return None if match is None else int(match[1])


_MOUNT = "mount or create the folder; the broker then copies the missing records; the log is intact"
