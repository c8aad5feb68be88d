"""A view as a Delta table, at one path for good, which any engine can read.

    <app>.lake/<view>/                               the table that serves
    <app>.lake/_headrace/<view>/catalog/0000…7.json  who may write (``headrace.views.catalog``)
    <app>.lake/_headrace/<view>/7-5f0c…/             the table that is being built, until it serves

**Rows and position agree**, since the position is in the commit that makes the rows (``log``).

**Nobody else writes the table that serves**: a follower that takes the view notes itself in the catalog and then makes
a commit of its own in the table. Whoever was there before looks at the table, then at the catalog, and commits upon the
version that it has looked at: if it has seen the old catalog, it has seen a version before the new owner's commit, and
its own fails. The table that is being built is one's own: it is copied when a view is taken (its files are shared), and
the old folder is moved away.

**A build takes its place in one step**: the first one by a rename of its folder, each later one by a commit that
replaces all rows and columns, so that the path and the versions go on. Who reads an older version goes on reading it.

A kill leaves the versions of before or after, files that no version has, and folders that no catalog names; the next
one to come removes those. A rename whose catalog was not written any more leaves a building folder that is not there,
which is none.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.views.catalog import Catalog, CatalogFolder, is_older, number_of, sync_folder, told
from headrace.views.changes import Changes
from headrace.views.delta.columns import Columns
from headrace.views.delta.copying import copy_table
from headrace.views.delta.log import Told, newest_version
from headrace.views.delta.remains import are_remains
from headrace.views.delta.table import LakeTable
from headrace.views.delta.upkeep import Upkeep
from headrace.views.errors import PositionMoved, StoreForeign, StoreReplaced
from headrace.views.file_troubles import told_as
from headrace.views.names import expect_view_name
from headrace.views.position import Position, Shape, Standing
from headrace.views.rows import Row, key_order
from headrace.views.store import Fence, Owner, Part, Store, next_owner, refuse_stale

__all__ = ["CATALOG", "HOME", "DeltaStore"]

HOME = "_headrace"
CATALOG = "catalog"
_TRASH = "gone-"


class DeltaStore(Store):
    # A commit rewrites the files that it changes rows of.
    rows_at_once = 50_000

    def __init__(self, path: Path, view: str, clock: Clock | None = None) -> None:
        expect_view_name(view)
        self.view = view
        self._clock = clock or SystemClock()
        self.path = path
        self._table_path = path / view
        self._home = path / HOME / view
        self._catalog = CatalogFolder(self._home / CATALOG, view)
        self._catalog.make()
        self._tables: dict[Path, tuple[LakeTable, Upkeep]] = {}

    def close(self) -> None:
        self._tables.clear()

    # Who may write

    def take(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        self.close()
        found: list[Owner] = []

        def make(now: Catalog) -> Catalog:
            owner = next_owner(self.view, name, now.who, before)
            found[:] = [owner]
            return msgspec.structs.replace(
                now,
                epoch=owner.epoch,
                owner=owner.name,
                taken_ms=now_ms,
                building=self._copied(now),
            )

        self._change(make)
        self._shut_out()
        return found[0]

    def _copied(self, now: Catalog) -> str:
        """The name of a folder of one's own with what is being built; none if that is gone."""
        old = self._folder(now, Part.BUILDING)
        if old is None:
            return ""
        new = self._new_folder(now)
        with told_as(old):
            try:
                copy_table(old, self._home / new)
            except BaseException as error:
                shutil.rmtree(self._home / new, ignore_errors=True)
                if isinstance(error, FileNotFoundError):
                    return ""
                raise
        return new

    def _shut_out(self) -> None:
        """After this nothing can be committed that was checked against an older catalog."""
        while True:
            table = self._table(self._table_path)
            if table is None:
                return
            with told_as(self._table_path), contextlib.suppress(PositionMoved):
                said = table.told
                if said is not None and table.has_lost_files():
                    # It cannot be read, nor gone on with: it is built anew.
                    said = msgspec.structs.replace(said, fault="files are missing that the table has")
                table.note(said)
                return

    def _new_folder(self, now: Catalog) -> str:
        return f"{now.number + 1}-{uuid.uuid4().hex[:12]}"

    def _change(self, make: Callable[[Catalog], Catalog]) -> Catalog:
        catalog = self._catalog.change(make)
        with told(self._home):
            for path in list(self._home.iterdir()):
                self._remove_if_lost(path, catalog)
        return catalog

    def _remove_if_lost(self, path: Path, catalog: Catalog) -> None:
        """A folder that this version does not name, and that none to come can."""
        if 0 <= number_of(path.name) <= catalog.number and path.name != catalog.building:
            self._tables.pop(path, None)
            # In one step: whoever is about to rename it has it whole or not at all.
            with contextlib.suppress(FileNotFoundError):
                path = self._put_aside(path)
        if path.name.startswith(_TRASH):
            shutil.rmtree(path, ignore_errors=True)

    def _put_aside(self, path: Path) -> Path:
        """To be removed with the next change."""
        return path.rename(self._home / f"{_TRASH}{uuid.uuid4().hex}")

    # What there is

    def _folder(self, catalog: Catalog, part: Part) -> Path | None:
        path = self._table_path if part is Part.SERVING else self._home / catalog.building
        if part is Part.BUILDING and not catalog.building:
            return None
        if self._is_table(path):
            return path
        if path in self._tables:
            del self._tables[path]
            raise _removed(path)
        return None

    def _is_table(self, path: Path) -> bool:
        with told(path):
            return newest_version(path) is not None

    def _table(self, path: Path | None) -> LakeTable | None:
        """As of its newest version."""
        if path is None or not self._is_table(path):
            return None
        with told_as(path):
            if path not in self._tables:
                table = LakeTable(path)
                if not table.is_ours:
                    raise StoreForeign(
                        f"{path} has a Delta table that no follower made",
                        hint="name another folder for the store, or the view otherwise; it was left as it is",
                    )
                self._tables[path] = (table, Upkeep(table, self._clock))
            table, _ = self._tables[path]
            try:
                table.look()
            except BaseException:
                del self._tables[path]
                raise
            return table

    def standing(self, part: Part) -> Standing | None:
        return self._standing(self._catalog.read(), part)

    def _standing(self, catalog: Catalog, part: Part) -> Standing | None:
        table = self._table(self._folder(catalog, part))
        return table.told.standing if table is not None and table.told is not None else None

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        table = self._table(self._folder(self._catalog.read(), part))
        if table is None or table.told is None:
            raise PositionMoved(f"view {self.view!r} has no {part} table in {self.path}")
        with told_as(table.folder):
            yield from sorted(table.rows(), key=key_order(table.told.standing.shape))

    # What changes it: the table is looked at first, then the catalog

    def begin(self, shape: Shape, position: Position, reason: str, fence: Fence) -> Standing:
        made: list[Standing] = []

        def make(now: Catalog) -> Catalog:
            refuse_stale(self.view, fence, now.who, None)
            serving = self._standing(now, Part.SERVING)
            if serving is not None and is_older(position, serving.position):
                refuse_stale(self.view, fence, now.who, serving.position.generation)
            said = Told(position, shape.tell(), now.wish, reason, Columns(shape).names)
            if serving is None:
                self._expect_path_free(said.columns)
            folder = self._new_folder(now)
            with told_as(self._home / folder):
                try:
                    table = LakeTable.create(self._home / folder, shape, said)
                except BaseException:
                    shutil.rmtree(self._home / folder, ignore_errors=True)
                    raise
            self._tables[table.folder] = (table, Upkeep(table, self._clock))
            made[:] = [said.standing]
            return msgspec.structs.replace(now, building=folder)

        self._change(make)
        return made[0]

    def _expect_path_free(self, columns: Sequence[str]) -> None:
        path = self._table_path
        if self._is_table(path):
            return
        with told(path):
            if not path.exists():
                return
            if path.is_dir() and are_remains(path, columns):
                self._put_aside(path)
                return
        raise StoreForeign(
            f"{path} has something that no follower made",
            hint="name another folder for the store, or the view otherwise; it was left as it is",
        )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        table = self._expect(self._catalog.read(), part, before, fence)
        if after.generation != fence.generation:
            refuse_stale(self.view, fence, fence.owner, after.generation)
        assert table is not None
        with self._writing(table.folder, fence):
            table.apply(changes, after)
        with self._writing(table.folder, fence), contextlib.suppress(PositionMoved):
            # Somebody else may tidy up at the same time.
            self._tables[table.folder][1].after_commit()

    @contextlib.contextmanager
    def _writing(self, path: Path, fence: Fence) -> Iterator[None]:
        try:
            with told_as(path):
                yield
        except (OverflowError, UnicodeError):
            raise
        except BaseException:
            table, _ = self._tables.pop(path, (None, None))
            # It failed because another has taken the view, or somebody has taken the table or all of it away.
            refuse_stale(self.view, fence, self._catalog.read().who, None)
            with told(path):
                if table is not None and not table.is_there():
                    raise _removed(path) from None
            raise

    def _expect(self, seen: Catalog, part: Part, before: Position | None, fence: Fence) -> LakeTable | None:
        """The part is as its follower left it, and the follower is the one that may write."""
        table = self._table(self._folder(seen, part))
        position = table.told.position if table is not None and table.told is not None else None
        # Read again, behind the look at the table.
        catalog = self._catalog.read()
        refuse_stale(self.view, fence, catalog.who, position.generation if position else None)
        moved = part is Part.BUILDING and catalog.building != seen.building
        if position is None or moved or (before is not None and position != before):
            raise PositionMoved(
                f"view {self.view!r} in {self.path} is not where its follower left it",
                detail=f"left at {before}, found at {position}",
                hint="was the store restored from a backup? It goes on from where the store is",
            )
        if table is not None and table.told is not None and table.told.fault:
            raise PositionMoved(
                f"view {self.view!r} in {self.path} is not as its follower left it: {table.told.fault}",
                hint="it is built again; rather than changing it, make a table of your own from it",
            )
        return table

    def swap(self, fence: Fence) -> None:
        serving = self._table(self._table_path)
        built = self._expect(self._catalog.read(), Part.BUILDING, None, fence)
        assert built is not None
        if serving is not None:
            with self._writing(serving.folder, fence), told_as(built.folder):
                serving.replace(built)
        else:
            self._tables.clear()
            with self._writing(built.folder, fence):
                self._move_in(built)

        def make(now: Catalog) -> Catalog:
            refuse_stale(self.view, fence, now.who, None)
            return msgspec.structs.replace(now, building="")

        self._change(make)

    def _move_in(self, built: LakeTable) -> None:
        self._expect_path_free(built.columns().names)
        built.folder.rename(self._table_path)
        sync_folder(self.path)

    def drop_building(self, fence: Fence) -> None:
        def make(now: Catalog) -> Catalog:
            refuse_stale(self.view, fence, now.who, None)
            return msgspec.structs.replace(now, building="")

        self._change(make)

    # Wishes

    def ask_rebuild(self) -> None:
        self._catalog.change(lambda now: msgspec.structs.replace(now, wish=now.wish + 1))

    def wish(self) -> int:
        return self._catalog.read().wish


def _removed(path: Path) -> StoreReplaced:
    return StoreReplaced(
        f"{path} was removed or replaced while it was open",
        hint="the view goes on with what is there now, or is built again",
    )
