"""The catalog of a view that is stored in folders: a small JSON file that names the owner and the folders of the parts.

    <folder>/00000000000000000007.json        the highest number is the current version
    <folder>/00000000000000000008.4f1c….tmp   the next version, not committed yet

A change writes a complete version to a temporary file, syncs it, and links it to the next number. The link fails if the
number exists, so only one of two concurrent changes succeeds. This needs no lock, so a stopped process cannot block
others. Old versions are removed, so a process that slept for a long time can link an old number that is free again.
After the link it finds a higher number, and its change counts as failed. A crash leaves the version before or after the
change, and possibly a ``.tmp`` file, which the next change removes.

If a version adds a folder, the folder's name contains the version's number. So an orphaned folder can be distinguished
from a folder that another change is about to add (``version_of_folder``).
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.files import make_private_dir, private
from headrace.stores.errors import StoreDamaged, StoreGone, StoreReplaced, StoreUnusable
from headrace.stores.file_errors import file_error, removed_error, translate_os_errors
from headrace.stores.position import ViewState
from headrace.stores.reader import StoredView, StoreReader
from headrace.stores.writer import Owner, Part, StoreWriter

__all__ = [
    "Catalog",
    "CatalogFolder",
    "CatalogReader",
    "CatalogWriter",
    "is_folder_name",
    "new_folder_name",
    "sync_folder",
    "version_of_folder",
    "write_synced",
]

FORMAT = 1
_VERSIONS_KEPT = 8
_FOLDER = re.compile(r"\d{1,20}-[0-9a-f]{12}")


class Catalog(msgspec.Struct, frozen=True):
    """One version. ``serving``, ``building`` and ``kept`` are names of folders; empty if the part does not exist.

    A Delta table has a fixed path as its serving part, and names its kept part in its log. So its catalog names only
    the building part.
    """

    view: str
    number: int = 0
    format: int = FORMAT
    epoch: int = 0
    owner: str = ""
    taken_ms: int = 0
    rebuild_requests: int = msgspec.field(name="wish", default=0)
    serving: str = ""
    building: str = ""
    kept: str = ""

    @property
    def current_owner(self) -> Owner | None:
        return Owner(self.epoch, self.owner) if self.epoch else None

    def folder(self, part: Part) -> str:
        return {Part.SERVING: self.serving, Part.BUILDING: self.building, Part.KEPT: self.kept}[part]


class CatalogFolder:
    """Reads and changes the catalog. Reading does not create any file.

    Raises ``StoreReplaced`` if the folder was replaced, or if its version decreases, for example because its files were
    restored from a backup.
    """

    def __init__(self, folder: Path, view: str) -> None:
        self.folder = folder
        self.view = view
        with translate_os_errors(folder):
            self._identity = _identity(folder)
        self._last_read: Catalog | None = None

    def create(self) -> None:
        """Create the folder unless it exists. Only writers call this."""
        try:
            make_private_dir(self.folder)
        except (FileExistsError, NotADirectoryError) as error:
            link = _dangling_link(self.folder)
            if link is not None:
                raise StoreGone(
                    f"{link} links to {os.readlink(link)}, which does not exist",  # noqa: PTH115
                    hint="check whether the disk is mounted; the follower retries",
                ) from error
            raise StoreUnusable(
                f"cannot create {self.folder}: {error.strerror}", hint="choose another folder for the store"
            ) from error
        except OSError as error:
            raise file_error(self.folder, error.errno or 0, str(error)) from error
        with translate_os_errors(self.folder):
            self._identity = _identity(self.folder)

    def read(self) -> Catalog:
        """Return the current version. Its number is 0 if no version exists yet."""
        with translate_os_errors(self.folder):
            if self._identity is not None and _identity(self.folder) != self._identity:
                raise removed_error(self.folder)
            while True:
                number = max(self._numbers(), default=0)
                if self._last_read is not None and self._last_read.number == number:
                    return self._last_read
                try:
                    data = self._path(number).read_bytes() if number else b""
                except FileNotFoundError:
                    continue  # Another process has written newer versions and removed this one.
                self._last_read = self._check_newer(
                    self._decode(data, number) if number else Catalog(self.view)
                )
                return self._last_read

    def _check_newer(self, catalog: Catalog) -> Catalog:
        last_read = self._last_read
        if last_read is not None and (catalog.number < last_read.number or catalog.epoch < last_read.epoch):
            raise StoreReplaced(
                f"{self.folder} is now at version {catalog.number} of epoch {catalog.epoch}, but was at version"
                f" {last_read.number} of epoch {last_read.epoch}",
                hint="the store was probably restored from a backup; the follower continues from the restored state,"
                " or rebuilds the view",
            )
        return catalog

    def change(
        self, update: Callable[[Catalog], Catalog], still_valid: Callable[[], bool] = lambda: True
    ) -> Catalog:
        """Write the version that ``update`` returns for the current version.

        Calls ``update`` again if another change was committed first, or if ``still_valid`` returns false before the
        commit.
        """
        while True:
            before = self.read()
            after = msgspec.structs.replace(update(before), view=self.view, number=before.number + 1)
            if self._commit(after, still_valid):
                return after

    def _commit(self, catalog: Catalog, still_valid: Callable[[], bool]) -> bool:
        number = catalog.number
        temporary = self.folder / f"{number:020}.{uuid.uuid4().hex}.tmp"
        try:
            with translate_os_errors(self.folder):
                write_synced(temporary, msgspec.json.encode(catalog))
                if not still_valid():
                    return False
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, self._path(number))
                    sync_folder(self.folder)
                    if max(self._numbers(), default=0) == number:
                        self._remove_below(number)
                        return True
                return False
        finally:
            # If the file cannot be removed now, the next change removes it.
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.folder)  # noqa: PTH208  before every batch
        except FileNotFoundError:
            return []
        return [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]

    def _remove_below(self, number: int) -> None:
        for old in self._numbers():
            if old <= number - _VERSIONS_KEPT:
                self._path(old).unlink(missing_ok=True)
        for path in self.folder.glob("*.tmp"):
            if path.name[:20].isdigit() and int(path.name[:20]) < number:
                path.unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:020}.json"

    def _decode(self, data: bytes, number: int) -> Catalog:
        path = self._path(number)
        try:
            catalog = msgspec.json.decode(data, type=Catalog)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreDamaged(
                f"{path} is damaged: {error}",
                hint=f"move {self.folder} to another place; the follower then rebuilds the view from the log",
            ) from error
        if catalog.format > FORMAT:
            raise StoreUnusable(
                f"{path} has format {catalog.format}; this release reads formats up to {FORMAT}",
                hint=f"use the release that wrote it, or move {self.folder} to another place; the follower then"
                " rebuilds the view",
            )
        return catalog


class CatalogReader(StoreReader):
    """A reader of a folder with views. It does not hold files open."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.where = str(path)
        self._clock = clock or SystemClock()
        if not path.is_dir():
            raise StoreUnusable(
                f"folder {path} does not exist",
                hint="choose another folder, or build the view: headrace view follow APP",
            )

    def close(self) -> None:
        pass

    @abstractmethod
    def _view_names(self) -> Iterable[str]: ...

    @abstractmethod
    def _part_state(self, view: str, part: Part) -> ViewState | None: ...

    def state(self, view: str) -> ViewState | None:
        return self._part_state(view, Part.SERVING)

    def views(self) -> list[StoredView]:
        with translate_os_errors(self.path):
            names = sorted(self._view_names())
        return [stored for name in names for stored in self.parts(name)]

    def parts(self, view: str) -> list[StoredView]:
        states = ((part, self._part_state(view, part)) for part in Part)
        return [StoredView(view, part, state) for part, state in states if state is not None]

    def not_serving(self, view: str) -> StoreUnusable:
        return StoreUnusable(
            f"{self.path} does not serve view {view!r} yet", hint="check its state: headrace view describe"
        )


class CatalogWriter(StoreWriter):
    """A writer of a store with a catalog. The catalog counts the rebuild requests."""

    _catalog: CatalogFolder

    def request_rebuild(self) -> None:
        self._catalog.change(
            lambda current: msgspec.structs.replace(current, rebuild_requests=current.rebuild_requests + 1)
        )

    def rebuild_requests(self) -> int:
        return self._catalog.read().rebuild_requests


def new_folder_name(catalog: Catalog) -> str:
    """Return a name for a folder that the next version adds."""
    return f"{catalog.number + 1}-{uuid.uuid4().hex[:12]}"


def is_folder_name(name: str) -> bool:
    """Return whether ``new_folder_name`` can have returned the name."""
    return _FOLDER.fullmatch(name) is not None


def version_of_folder(name: str) -> int:
    """Return the number of the version that added the folder, or -1 if the name has no such number."""
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else -1


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
        stat = os.stat(path)  # noqa: PTH116  before every batch
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_dev, stat.st_ino


def _dangling_link(path: Path) -> Path | None:
    """Return the symbolic link in ``path`` whose target does not exist, if any."""
    return next(
        (parent for parent in (path, *path.parents) if parent.is_symlink() and not parent.exists()), None
    )
