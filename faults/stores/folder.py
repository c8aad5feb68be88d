"""Stores that are folders on a disk that can be unmounted. A symbolic link leads to the folder."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.patch import patch
from faults.stores.port import FaultyStore, Snapshot, StoreFaults
from headrace.stores.writer import StoreWriter

__all__ = ["FaultyFolder", "FolderFaults"]


class FaultyFolder(FaultyStore):
    def __init__(self, home: Path, name: str, read: Callable[[Path, str], Snapshot | None]) -> None:
        self._disk = home / "disk"
        self._disk.mkdir()
        (home / "mounted").symlink_to(self._disk)
        self.path = home / "mounted" / name
        self.address = str(self.path)
        self._read = read

    @contextlib.contextmanager
    def open_snapshot_reader(self, view: str) -> Iterator[Callable[[], Snapshot | None]]:
        yield functools.partial(self._read, self.path, view)

    def stop(self) -> None:
        self._disk.rename(self._disk.with_name("unmounted"))

    def start(self) -> None:
        self._disk.with_name("unmounted").rename(self._disk)

    def wipe(self) -> None:
        removed = self._sibling("removed")
        self.path.rename(removed)
        shutil.rmtree(removed)

    def back_up(self) -> object:
        backup = self._sibling("backup")
        while True:
            # The follower might have removed a file between listing and copying.
            shutil.rmtree(backup, ignore_errors=True)
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(self.path, backup)
                return backup

    def restore(self, backup: object) -> None:
        assert isinstance(backup, Path)
        removed = self._sibling("removed")
        self.path.rename(removed)
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
        backup.rename(self.path)
        shutil.rmtree(removed)

    def _sibling(self, label: str) -> Path:
        return self.path.with_name(f"{label}-{time.monotonic_ns()}")


class FolderFaults(StoreFaults):
    name: str

    def open(self, store_class: type[Any], address: str, view: str) -> StoreWriter:
        return store_class(Path(address), view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def create(self, home: Path) -> Iterator[FaultyStore]:
        yield FaultyFolder(home, f"shop.{self.name}", self.read_snapshot)

    def remove_position_check(self, store_class: type[Any]) -> None:
        """Also accept a folder as the same store if only its name is the same."""
        from headrace.stores import catalog

        super().remove_position_check(store_class)
        patch(catalog, "_identity", lambda _: None)

    @abstractmethod
    def read_snapshot(self, path: Path, view: str) -> Snapshot | None:
        """Read one snapshot with the store's library, not with the product."""
