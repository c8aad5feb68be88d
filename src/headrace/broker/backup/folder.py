"""The folder of a backup, which may be an object store's mount.

    FOLDER/backup.json                            whose it is; written once
    FOLDER/manifests/…                            one file per moment that is kept (see ``manifest``)
    FOLDER/pieces/<place>/<segment's base offset, 20 digits>-<byte, 12 digits>-<sequence, 10 digits>-<run>.piece
    FOLDER/pieces/<place>/<offset, 20 digits>-<sequence, 10 digits>-<run>.state

A *place* is ``metadata``, ``groups``, or ``<topic id>/<partition>``. The sequence is that of the first manifest that
names the file, the run the broker's that wrote it: so no two writers ever mean the same name.

Only what any mount can do is asked of it: write a new file under a name that ends in ``.new``, sync it, give it its
name; list; read; remove. No file is written twice, no lock is taken, no time of a file is looked at. A ``.new`` that a
crash has left is removed by the next start.
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

from headrace.broker.backup.authenticity import Authenticity
from headrace.broker.backup.errors import (
    BackupAway,
    BackupDamaged,
    BackupError,
    BackupUnauthentic,
    NoSuchMoment,
)
from headrace.broker.backup.manifest import (
    FORMAT,
    Manifest,
    ManifestName,
    authenticity_in,
    decode,
    encode,
)
from headrace.files import Buffer, File, Files, SystemFiles

__all__ = ["NEW", "BackupFolder", "Belongs", "open_regular", "sequence_of"]

_MANIFESTS, _PIECES, _IDENTITY = "manifests", "pieces", "backup.json"
NEW = ".new"
_IDENTITY_BYTES_MAX = 1 << 16
_MANIFEST_BYTES_MAX = 1 << 30
_SEQUENCE = re.compile(r"-(\d{10})-([0-9a-f]{8})\.(?:piece|state)")
# What file systems answer that cannot sync a directory, and need not.
_NO_DIR_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF)


class Belongs(msgspec.Struct, frozen=True):
    """Whose backup it is."""

    format: int
    cluster_id: str
    line: str
    """Of the data directory: one that was restored has another."""


class BackupFolder:
    """With a ``key``, manifests are written with its MAC, and read only with it unless ``accepts_unauthentic``."""

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
        self._ready: set[Path] = set()

    @property
    def has_key(self) -> bool:
        return self._key is not None

    @property
    def expects_authentic(self) -> bool:
        return self._key is not None and not self._accepts_unauthentic

    @property
    def manifests(self) -> Path:
        return self.path / _MANIFESTS

    def piece(self, place: str, file: str) -> Path:
        return self.path / _PIECES / place / file

    # Whose it is

    def belongs(self) -> Belongs | None:
        """``None`` where the folder is there and holds no backup; raises ``BackupAway`` where it is not there."""
        try:
            with open_regular(self.path / _IDENTITY) as file:
                raw = file.read(_IDENTITY_BYTES_MAX)
        except FileNotFoundError:
            if self.path.is_dir():
                return None
            raise BackupAway(f"the backup folder {self.path} is not there", hint=_MOUNT) from None
        except OSError as error:
            raise BackupAway(f"the backup folder {self.path} cannot be read: {error}", hint=_MOUNT) from error
        try:
            found = msgspec.json.decode(raw, type=Belongs)
        except msgspec.MsgspecError as error:
            raise BackupDamaged(
                f"{self.path / _IDENTITY} does not read back: {error}",
                hint="it names the broker that the backup is of, and nothing else; its manifests do, too",
            ) from error
        if found.format > FORMAT:
            raise BackupError(
                f"the backup in {self.path} has format {found.format}, and this release reads up to {FORMAT}",
                hint="use the release that wrote it, or a later one",
            )
        return found

    def expect(self) -> Belongs:
        """As ``belongs``, for those who want to read one."""
        found = self.belongs()
        if found is None:
            raise NoSuchMoment(
                f"there is no backup in {self.path}",
                hint="name the folder that the broker was given with --backup",
            )
        return found

    def claim(self, belongs: Belongs) -> None:
        self.write(self.path / _IDENTITY, [msgspec.json.encode(belongs) + b"\n"])

    # Moments

    def names(self) -> list[ManifestName]:
        """Of all manifests, oldest first."""
        try:
            listed = [path.name for path in self.manifests.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in map(ManifestName.read, listed) if name is not None)

    def load(
        self, name: ManifestName, names: list[ManifestName] | None = None, *, authentic: bool | None = None
    ) -> Manifest:
        """A moment in full. ``authentic`` says whether it must be, where that is not what the folder expects."""
        authentic = self.expects_authentic if authentic is None else authentic
        found = self._read(name, authentic)
        if found.base is None:
            return found
        return found.over(self._base(found, self.names() if names is None else names, authentic))

    def _base(self, manifest: Manifest, names: list[ManifestName], authentic: bool) -> Manifest:
        for other in names:
            if other.sequence == manifest.base and other.base == other.sequence:
                base = self._read(other, authentic)
                if base.line == manifest.line:
                    return base
        raise BackupDamaged(
            f"the manifest {manifest.name.file} needs number {manifest.base}, which is not there",
            hint="headrace backup check FOLDER says which moments are whole",
        )

    def authenticity(self, name: ManifestName) -> Authenticity:
        """Of a moment: of its manifest, and of the one that it is on top of."""
        found = self._read(name, authentic=False)
        told = [name]
        if found.base is not None:
            told.append(self._base(found, self.names(), authentic=False).name)
        each = {authenticity_in(self._raw(one), self._key) for one in told}
        worst_first = (
            Authenticity.WRONG,
            Authenticity.MISSING,
            Authenticity.UNCHECKED,
            Authenticity.AUTHENTIC,
        )
        return next(one for one in worst_first if one in each)

    def _read(self, name: ManifestName, authentic: bool) -> Manifest:
        path = self.manifests / name.file
        raw = self._raw(name)
        if authentic and (found := authenticity_in(raw, self._key)) is not Authenticity.AUTHENTIC:
            raise BackupUnauthentic(
                f"the manifest {path} is not authentic: {found.value}",
                hint="check broker.backup_key; headrace backup list FOLDER shows which moments are authentic",
            )
        manifest = decode(raw, str(path))
        if manifest.name != name:
            raise BackupDamaged(
                f"the manifest {path} is damaged: it says that it is {manifest.name.file}",
                hint="headrace backup check FOLDER says which moments are whole",
            )
        return manifest

    def _raw(self, name: ManifestName) -> bytes:
        path = self.manifests / name.file
        try:
            with open_regular(path) as file:
                raw = file.read(_MANIFEST_BYTES_MAX + 1)
        except FileNotFoundError as error:
            raise NoSuchMoment(
                f"the manifest {path} is not there",
                hint="headrace backup list FOLDER shows those that are",
            ) from error
        except OSError as error:
            raise BackupDamaged(f"the manifest {path} cannot be read: {error}") from error
        if len(raw) > _MANIFEST_BYTES_MAX:
            raise BackupDamaged(f"the manifest {path} has more than {_MANIFEST_BYTES_MAX} bytes")
        return raw

    def add(self, manifest: Manifest) -> None:
        self.write(self.manifests / manifest.name.file, [encode(manifest, self._key)])

    # Files

    def write(self, path: Path, chunks: Iterable[Buffer]) -> None:
        """A new file, which has its name once it is durable. Where that fails, nothing is left of it."""
        self.make_ready(path.parent)
        fresh = path.with_name(path.name + NEW)
        if self._files.exists(fresh):
            self._files.remove(fresh)
        file = self._files.open(fresh, create=True)
        try:
            try:
                self._fill(file, chunks)
                file.sync()
            finally:
                file.close()
            self._files.rename(fresh, path)
        except BaseException:
            # On a full disk, half a piece would be in the way of all others.
            with suppress(OSError):
                self._files.remove(fresh)
            raise
        self.sync_dir(path.parent)

    @staticmethod
    def _fill(file: File, chunks: Iterable[Buffer]) -> None:
        position = 0
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                taken = file.pwrite([view], position)
                if taken <= 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))
                position += taken
                view = view[taken:]

    def make_ready(self, directory: Path) -> None:
        """Make a directory and those above it, up to the folder itself, which must be there."""
        if directory in self._ready:
            return
        if directory != self.path:
            self.make_ready(directory.parent)
            self._files.make_dir(directory)
            self.sync_dir(directory.parent)
        elif not self._files.exists(directory):
            raise FileNotFoundError(errno.ENOENT, "the backup folder is not there", str(directory))
        self._ready.add(directory)

    def forget_ready(self) -> None:
        """The folder may be another one now: directories are looked for again."""
        self._ready.clear()

    def sync_dir(self, directory: Path) -> None:
        try:
            self._files.sync_dir(directory)
        except OSError as error:
            if error.errno not in _NO_DIR_SYNC:
                raise

    def pieces(self) -> dict[tuple[str, str], int]:
        """Place and name of every file below ``pieces``, with its size."""
        root = self.path / _PIECES
        found: dict[tuple[str, str], int] = {}
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            with suppress(FileNotFoundError):
                about = path.stat()
                if stat.S_ISREG(about.st_mode):
                    found[path.parent.relative_to(root).as_posix(), path.name] = about.st_size
        return found

    def leftovers(self) -> Iterator[Path]:
        """Files that a crash has left before they had their names."""
        for directory in (self.path, self.manifests, self.path / _PIECES):
            if directory.is_dir():
                found = directory.rglob if directory.name == _PIECES else directory.glob
                yield from found(f"*{NEW}")

    def remove(self, path: Path) -> None:
        """What is gone already is as good."""
        try:
            self._files.remove(path)
        except FileNotFoundError:
            return

    def remove_empty_place(self, place: str) -> None:
        """Where nothing of a partition is left. Object stores have no directories, so that it fails is no trouble."""
        directory = self.path / _PIECES / place
        for one in (directory, directory.parent):
            self._ready.discard(one)
            try:
                self._files.remove_dir(one)
            except OSError:
                return


def open_regular(path: Path) -> BinaryIO:
    """For reading. A link could lead out of the folder; a pipe or a device would never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def sequence_of(file: str) -> int | None:
    """Of the first manifest that names a piece, from the piece's own name."""
    found = _SEQUENCE.search(file)
    return None if found is None else int(found[1])


_MOUNT = "mount it again, or make it; nothing of the log is lost, and what is missing is shipped then"
