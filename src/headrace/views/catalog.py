"""Who may write a view that is kept in files, and which folders hold it: a small JSON file, replaced in one step.

    <folder>/00000000000000000007.json   the newest number counts
    <folder>/00000000000000000008.4f1c….tmp   about to become one

A version is made whole under another name, synced, and linked to the next number; a link fails if the number is taken.
So of two who change the same version one wins, and there is no lock that a stopped process could keep. Who was asleep
for long may find its number free, since old versions are removed: it then sees a higher one, and has lost as well. A
kill leaves the version before or the version after, and perhaps a ``.tmp``, which the next change removes.

Folders that a version brings in carry its number in their name, so that what belongs to no version can be told from
what another is about to bring in (``lost``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace.private import make_private_dir, private
from headrace.views.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreGone,
    StoreReplaced,
    StoreUnusable,
)
from headrace.views.position import Position
from headrace.views.store import Owner, Part

__all__ = [
    "Catalog",
    "CatalogFolder",
    "file_error",
    "is_older",
    "number_of",
    "sync_folder",
    "told",
    "write_synced",
]

FORMAT = 1
_KEPT = 8
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BUSY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY}
_AWAY = {errno.EIO, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EHOSTDOWN}
_REPLACED = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


class Catalog(msgspec.Struct, frozen=True):
    """One version. ``serving`` and ``building`` name folders; empty where there is none."""

    view: str
    number: int = 0
    format: int = FORMAT
    epoch: int = 0
    owner: str = ""
    taken_ms: int = 0
    wish: int = 0
    serving: str = ""
    building: str = ""

    @property
    def who(self) -> Owner | None:
        return Owner(self.epoch, self.owner) if self.epoch else None

    def folder(self, part: Part) -> str:
        return self.serving if part is Part.SERVING else self.building


class CatalogFolder:
    """Reads make nothing. The folder is the same one for as long as this is open, and what is in it never goes back, or
    ``StoreReplaced`` is raised: it may have been put back under the same folder, file by file.
    """

    def __init__(self, folder: Path, view: str) -> None:
        self.folder = folder
        self.view = view
        with told(folder):
            self._identity = _identity(folder)
        self._known: Catalog | None = None

    def make(self) -> None:
        """For who writes: the folder, if there is none."""
        try:
            make_private_dir(self.folder)
        except (FileExistsError, NotADirectoryError) as error:
            lost = _leading_nowhere(self.folder)
            if lost is not None:
                raise StoreGone(
                    f"{lost} leads to {os.readlink(lost)}, which is not there",  # noqa: PTH115
                    hint="is a disk not mounted? It goes on by itself",
                ) from error
            raise StoreUnusable(
                f"{self.folder} cannot be made: {error.strerror}", hint="name another folder for the store"
            ) from error
        except OSError as error:
            raise file_error(self.folder, error.errno or 0, str(error)) from error
        with told(self.folder):
            self._identity = _identity(self.folder)

    def read(self) -> Catalog:
        """The newest version; one with the number 0 where there is none yet."""
        with told(self.folder):
            if self._identity is not None and _identity(self.folder) != self._identity:
                raise StoreReplaced(
                    f"{self.folder} was removed or replaced while it was open",
                    hint="the view goes on with what is there now, or is built again",
                )
            while True:
                number = max(self._numbers(), default=0)
                if self._known is not None and self._known.number == number:
                    return self._known
                try:
                    data = self._path(number).read_bytes() if number else b""
                except FileNotFoundError:
                    continue  # Newer ones have been made since.
                self._known = self._newer(self._decoded(data, number) if number else Catalog(self.view))
                return self._known

    def _newer(self, found: Catalog) -> Catalog:
        known = self._known
        if known is not None and (found.number < known.number or found.epoch < known.epoch):
            raise StoreReplaced(
                f"{self.folder} is at version {found.number} of epoch {found.epoch}, and was at version {known.number}"
                f" of epoch {known.epoch}",
                hint="was it restored from a backup? The view goes on with what is there now, or is built again",
            )
        return found

    def change(self, make: Callable[[Catalog], Catalog], is_so: Callable[[], bool] = lambda: True) -> Catalog:
        """``make`` is given the newest version and returns the next, or raises; asked again if it came too late, or if
        what it was made from is not so any more when it is about to count.
        """
        while True:
            before = self.read()
            after = msgspec.structs.replace(make(before), view=self.view, number=before.number + 1)
            if self._put(after, is_so):
                return after

    def _put(self, catalog: Catalog, is_so: Callable[[], bool]) -> bool:
        number = catalog.number
        made = self.folder / f"{number:020}.{uuid.uuid4().hex}.tmp"
        try:
            with told(self.folder):
                write_synced(made, msgspec.json.encode(catalog))
                if not is_so():
                    return False
                with contextlib.suppress(FileExistsError):
                    os.link(made, self._path(number))
                    sync_folder(self.folder)
                    if max(self._numbers(), default=0) == number:
                        self._remove_below(number)
                        return True
                return False
        finally:
            # What cannot be removed now is removed with the next version.
            with contextlib.suppress(OSError):
                made.unlink()

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208  before every batch
        except FileNotFoundError:
            return []
        return [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]

    def _remove_below(self, number: int) -> None:
        for one in self._numbers():
            if one <= number - _KEPT:
                self._path(one).unlink(missing_ok=True)
        for path in self.folder.glob("*.tmp"):
            if path.name[:20].isdigit() and int(path.name[:20]) < number:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:020}.json"

    def _decoded(self, data: bytes, number: int) -> Catalog:
        path = self._path(number)
        try:
            found = msgspec.json.decode(data, type=Catalog)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreDamaged(
                f"{path} is damaged: {error}",
                hint=f"move {self.folder} away: the view is built again from the log",
            ) from error
        if found.format > FORMAT:
            raise StoreUnusable(
                f"{path} has format {found.format}, and this release reads up to {FORMAT}",
                hint=f"use the release that wrote it, or move {self.folder} away: the view is built again",
            )
        return found


def number_of(folder: str) -> int:
    """Of the version that brought the folder in; -1 for a name of another kind."""
    number = folder.partition("-")[0]
    return int(number) if number.isdigit() else -1


def is_older(new: Position, serving: Position) -> bool:
    """An older generation of the same flow; generations of another one, or of one begun anew, do not compare."""
    return new.progress_id == serving.progress_id and new.generation < serving.generation


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  before every batch
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _leading_nowhere(path: Path) -> Path | None:
    """The link on the way to ``path`` whose target is not there."""
    return next((one for one in (path, *path.parents) if one.is_symlink() and not one.exists()), None)


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """The system's errors, in our terms."""
    try:
        yield
    except OSError as error:
        raise file_error(path, error.errno or 0, str(error)) from error


def file_error(path: Path, code: int, message: str) -> StoreError:
    if code in _FULL:
        return StoreFull(f"no space for {path}: {message}", hint="make room; it goes on by itself")
    if code in _BUSY:
        return StoreBusy(f"{path} cannot be used now: {message}", hint="it is tried again")
    if code in _AWAY:
        return StoreGone(f"{path} does not answer: {message}", hint="look at the disk; it is tried again")
    if code in _REPLACED:
        return StoreReplaced(
            f"something of {path} is gone: {message}",
            hint="the view goes on with what is there now, or is built again",
        )
    return StoreUnusable(
        f"{path} cannot be used: {message}",
        hint="check what is there, and who owns it; or name another folder",
    )
