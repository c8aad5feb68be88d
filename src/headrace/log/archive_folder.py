"""An archive in a folder, for example on another disk or on a network mount."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from headrace.files import File, Files
from headrace.log.archive_store import with_first_read

__all__ = ["FolderStore"]

_TEMPORARY_SUFFIX = ".new"


class FolderStore:
    """``root`` is the configured folder. It must exist, because a missing folder may be an unavailable mount. ``home``
    is the cluster's folder in ``root``.

    A file is written under a temporary name, synced and renamed. A crash may leave a ``.new`` file. Readers ignore it,
    and the next ``put`` or ``delete`` of the name removes it.
    """

    advice = "mount the archive again"

    def __init__(self, files: Files, root: Path, home: str) -> None:
        self._files = files
        self._root = root
        self._home = root / home

    def location(self, name: str) -> str:
        return str(self._home / name)

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        self._expect_root()
        target = self._home / name
        self._make_parents(target)
        temporary = _temporary_path(target)
        chunks = with_first_read(chunks)
        for leftover in (temporary, target):
            if self._files.exists(leftover):
                self._files.remove(leftover)
        file = self._files.open(temporary, create=True)
        try:
            position = 0
            for chunk in chunks:
                if file.pwrite([chunk], position) != len(chunk):
                    raise OSError(f"short write of {temporary} at byte {position}")
                position += len(chunk)
            if position != size:
                raise OSError(f"short copy to {temporary}: {position} of {size} bytes")
            file.sync()
        finally:
            file.close()
        self._files.rename(temporary, target)
        self._files.sync_dir(target.parent)

    def open(self, name: str) -> File:
        return self._files.open(self._home / name)

    def list(self, name: str) -> list[str]:
        self._expect_root()
        directory = self._home / name
        if not self._files.exists(directory):
            return []
        return sorted(name for name in self._files.list(directory) if not name.endswith(_TEMPORARY_SUFFIX))

    def delete(self, name: str) -> None:
        self._expect_root()
        target = self._home / name
        paths = [path for path in (_temporary_path(target), target) if self._files.exists(path)]
        for path in paths:
            self._remove(path)
        if paths:
            self._files.sync_dir(target.parent)

    def _remove(self, path: Path) -> None:
        try:
            names = self._files.list(path)
        except NotADirectoryError:
            self._files.remove(path)
            return
        for name in names:
            self._remove(path / name)
        self._files.remove_dir(path)

    def _make_parents(self, target: Path) -> None:
        for level in reversed(target.relative_to(self._root).parents[:-1]):
            self._files.make_dir(self._root / level)
            # Sync even if the directory existed: a killed process may have left it only in the page cache.
            self._files.sync_dir((self._root / level).parent)

    def _expect_root(self) -> None:
        if not self._files.exists(self._root):
            raise OSError(errno.ENOENT, "the archive folder does not exist")


def _temporary_path(path: Path) -> Path:
    return path.with_name(path.name + _TEMPORARY_SUFFIX)
