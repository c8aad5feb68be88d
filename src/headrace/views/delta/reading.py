"""Looking at Delta tables of views."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.clock import Clock, SystemClock
from headrace.views.catalog import CatalogFolder, told
from headrace.views.delta.log import newest_version
from headrace.views.delta.store import CATALOG, HOME
from headrace.views.delta.table import LakeTable
from headrace.views.errors import QueryFailed, StoreReplaced, StoreUnusable
from headrace.views.file_troubles import told_as
from headrace.views.reader import Known, Reader
from headrace.views.rows import Row
from headrace.views.store import Part

__all__ = ["DeltaReader"]


class DeltaReader(Reader):
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
        home = self.path / HOME
        with told(home):
            views = sorted(one.name for one in home.iterdir()) if home.is_dir() else []
        return [known for view in views for known in self.known_of(view)]

    def known_of(self, view: str) -> list[Known]:
        return [known for part in Part if (known := self._known(view, part)) is not None]

    def count(self, view: str) -> int:
        table = self._serving(view)
        with told_as(table.folder):
            return table.count()

    @contextlib.contextmanager
    def _within(self, table: LakeTable, timeout_s: float) -> Iterator[tuple[list[str], Iterator[Row]]]:
        deadline = self._clock.steady() + timeout_s
        assert table.told is not None
        yield list(table.told.standing.shape.names), self._until(deadline, table, timeout_s)

    def reading(self, view: str, timeout_s: float) -> AbstractContextManager[tuple[list[str], Iterator[Row]]]:
        return self._within(self._serving(view), timeout_s)

    def _until(self, deadline: float, table: LakeTable, timeout_s: float) -> Iterator[Row]:
        with told_as(table.folder):
            for row in table.rows():
                if self._clock.steady() > deadline:
                    raise QueryFailed(
                        f"the query was stopped after {timeout_s:g} s", hint="--timeout gives it more"
                    )
                yield row

    def _serving(self, view: str) -> LakeTable:
        found = self.table(view, Part.SERVING)
        if found is None:
            raise StoreUnusable(
                f"view {view!r} does not serve in {self.path}", hint="see headrace view describe"
            )
        return found

    def table(self, view: str, part: Part) -> LakeTable | None:
        path = self.path / view
        if part is Part.BUILDING:
            folder = CatalogFolder(self.path / HOME / view / CATALOG, view).read().building
            path = self.path / HOME / view / folder
            if not folder:
                return None
        try:
            with told_as(path):
                if newest_version(path) is None:
                    return None
                table = LakeTable(path)
        except StoreReplaced:
            return None
        return table if table.told is not None else None

    def _known(self, view: str, part: Part) -> Known | None:
        table = self.table(view, part)
        if table is None or table.told is None:
            return None
        standing = table.told.standing
        position = standing.position
        return Known(
            *(view, part, position.topic, position.generation, position.batch, position.offsets),
            *(position.dead, position.stored_ms, standing.reason, standing.shape, position.sources),
        )
