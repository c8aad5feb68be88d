"""Looking at full-text indexes: the rows of a view, and those that words are found in, the best first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.clock import Clock, SystemClock
from headrace.views.catalog import Catalog, CatalogFolder, told
from headrace.views.errors import QueryFailed, StoreReplaced, StoreUnusable
from headrace.views.reader import Known, Reader
from headrace.views.rows import Row
from headrace.views.search.snapshot import Snapshot
from headrace.views.search.store import CATALOG
from headrace.views.store import Part

__all__ = ["SearchReader"]

_TRIES = 20


class SearchReader(Reader):
    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.where = str(path)
        self._clock = clock or SystemClock()
        if not path.is_dir():
            raise StoreUnusable(
                f"there is no folder {path}", hint="name another, or build it: headrace view follow APP"
            )

    def close(self) -> None:
        """Nothing is kept open."""

    def known(self) -> list[Known]:
        with told(self.path):
            views = sorted(home.name for home in self.path.iterdir() if (home / CATALOG).is_dir())
        return [known for view in views for known in self.known_of(view)]

    def known_of(self, view: str) -> list[Known]:
        parts = ((part, self.snapshot(view, part)) for part in Part)
        return [_known(view, part, snapshot) for part, snapshot in parts if snapshot is not None]

    def count(self, view: str) -> int:
        return self._serving(view).count()

    def reading(self, view: str, timeout_s: float) -> AbstractContextManager[tuple[list[str], Iterator[Row]]]:
        snapshot = self._serving(view)
        return self._within(snapshot, snapshot.rows(), timeout_s)

    def matching(
        self, view: str, words: str, limit: int, timeout_s: float
    ) -> AbstractContextManager[tuple[list[str], Iterator[Row]]]:
        """The rows that the words are found in, the best first."""
        snapshot = self._serving(view)
        return self._within(snapshot, snapshot.matching(words, limit), timeout_s)

    @contextlib.contextmanager
    def _within(
        self, snapshot: Snapshot, rows: Iterator[Row], timeout_s: float
    ) -> Iterator[tuple[list[str], Iterator[Row]]]:
        deadline = self._clock.steady() + timeout_s
        try:
            yield list(snapshot.told.standing.shape.names), self._until(deadline, rows, timeout_s)
        except ValueError as error:
            named = ", ".join(snapshot.documents.names)
            raise QueryFailed(
                f"the index does not understand that: {error}",
                hint=f'words, "words in a row", +must, -must not, column:word; the columns are {named}',
            ) from error

    def _until(self, deadline: float, rows: Iterator[Row], timeout_s: float) -> Iterator[Row]:
        for row in rows:
            if self._clock.steady() > deadline:
                raise QueryFailed(
                    f"the query was stopped after {timeout_s:g} s", hint="--timeout gives it more"
                )
            yield row

    def _serving(self, view: str) -> Snapshot:
        found = self.snapshot(view, Part.SERVING)
        if found is None:
            raise StoreUnusable(
                f"view {view!r} does not serve in {self.path}", hint="see headrace view describe"
            )
        return found

    def snapshot(self, view: str, part: Part) -> Snapshot | None:
        """Of the folder that counts when it has been opened."""
        catalog = CatalogFolder(self.path / view / CATALOG, view)
        for _ in range(_TRIES):
            now: Catalog = catalog.read()
            folder = now.folder(part)
            if not folder:
                return None
            try:
                found = Snapshot(self.path / view / folder)
            except StoreReplaced:
                if catalog.read().folder(part) == folder:
                    return None
                continue
            if catalog.read().folder(part) == folder:
                return found
        raise StoreUnusable(f"{self.path / view} changes faster than it can be read", hint="try again")


def _known(view: str, part: Part, snapshot: Snapshot) -> Known:
    standing = snapshot.told.standing
    position = standing.position
    return Known(
        *(view, part, position.topic, position.generation, position.batch, position.offsets),
        *(position.dead, position.stored_ms, standing.reason, standing.shape, position.sources),
    )
