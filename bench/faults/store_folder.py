"""A store that is a folder, on a disk that can be taken away: a link leads there, as to what is mounted."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.faults.store_place import Seen, StoreKind, StorePlace
from headrace.views.store import Store

__all__ = ["FolderKind", "FolderPlace"]


class FolderPlace(StorePlace):
    def __init__(self, home: Path, name: str, look: Callable[[Path, str], Seen | None]) -> None:
        self._disk = home / "disk"
        self._disk.mkdir()
        (home / "mounted").symlink_to(self._disk)
        self.path = home / "mounted" / name
        self.address = str(self.path)
        self._look = look

    @contextlib.contextmanager
    def watching(self, view: str) -> Iterator[Callable[[], Seen | None]]:
        yield functools.partial(self._look, self.path, view)

    def stop(self) -> None:
        self._disk.rename(self._disk.with_name("unmounted"))

    def start(self) -> None:
        self._disk.with_name("unmounted").rename(self._disk)

    def wipe(self) -> None:
        away = self._aside("away")
        self.path.rename(away)
        shutil.rmtree(away)

    def keep(self) -> object:
        kept = self._aside("kept")
        while True:
            # What is written meanwhile may lack files that it had when it was listed.
            shutil.rmtree(kept, ignore_errors=True)
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(self.path, kept)
                return kept

    def restore(self, kept: object) -> None:
        assert isinstance(kept, Path)
        away = self._aside("away")
        self.path.rename(away)
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
        kept.rename(self.path)
        shutil.rmtree(away)

    def _aside(self, why: str) -> Path:
        return self.path.with_name(f"{why}-{time.monotonic_ns()}")


class FolderKind(StoreKind):
    name: str

    def open(self, product: type[Any], address: str, view: str) -> Store:
        return product(Path(address), view)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def place(self, home: Path) -> Iterator[StorePlace]:
        yield FolderPlace(home, f"shop.{self.name}", self.look)

    def no_position(self, product: type[Any]) -> None:
        """Also: a folder of the same name is taken for the same folder."""
        from headrace.views import catalog

        super().no_position(product)
        vars(catalog)["_identity"] = lambda _: None

    @abstractmethod
    def look(self, path: Path, view: str) -> Seen | None:
        """By the library alone."""
