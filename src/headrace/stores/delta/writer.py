"""Writes one view as a Delta table. Its path never changes, and any query engine for Delta can read it.

    <app>.lake/<view>/                               the serving table
    <app>.lake/_headrace/<view>/catalog/0000…7.json  names the owner (``headrace.stores.catalog``)
    <app>.lake/_headrace/<view>/7-5f0c…/             the building table, until it becomes the serving table
    <app>.lake/_headrace/<view>/9-b31e…/             the kept table, a former serving table

**Rows match the position**: the commit that writes the rows also contains the position
(``headrace.stores.delta.layout``).

**Only the owner writes the serving table**: to claim the view, a follower first writes its name into the catalog, and
then creates a commit in the table. To write rows, a follower reads the table, then the catalog, and commits on top of
the table's version that it read. If a previous owner read the old catalog, it read the table before the new owner's
commit. So the commit of the previous owner fails. The building table and the kept table belong to one owner: a claim
copies them (with shared files) and moves the old folders away.

**A swap is atomic**: the first swap renames the folder. Each later swap is a commit that replaces all rows and columns,
so the path remains and the version numbers continue. Readers of an older version are not affected. The state in the
same commit names the kept table. If the swap keeps the old serving table, it first creates a table with links to its
files. To switch back, the follower creates links to the files of the kept table in the folder of the serving table, and
commits them in place of the present files. So the time depends on the number of files, and not on the number of rows.

A crash leaves the version before or after the change. It can leave files that no version uses, and folders that neither
the catalog nor the serving table names; the next change of the catalog removes them. After a crash between the rename
and the change of the catalog, the catalog names a building folder that does not exist. The view then counts as having
no building part.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.stores.catalog import (
    Catalog,
    CatalogFolder,
    CatalogWriter,
    new_folder_name,
    sync_folder,
    version_of_folder,
)
from headrace.stores.delta.layout import (
    CATALOG,
    HEADRACE_DIR,
    Columns,
    CommitState,
    has_only_leftovers,
    newest_version,
)
from headrace.stores.delta.table import LakeTable, copy_table, kept_folder
from headrace.stores.delta.upkeep import Upkeep
from headrace.stores.errors import PositionMoved, StoreForeign
from headrace.stores.file_errors import removed_error, translate_errors, translate_os_errors
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row, key_order
from headrace.stores.writer import (
    Changes,
    Fence,
    Owner,
    Part,
    check_droppable,
    check_fence,
    check_kept,
    check_position,
    check_view_name,
    next_owner,
)

__all__ = ["DeltaWriter"]

_TRASH = "gone-"


class DeltaWriter(CatalogWriter):
    # A commit rewrites every file that has a changed row.
    rows_at_once = 50_000

    def __init__(self, path: Path, view: str, clock: Clock | None = None) -> None:
        check_view_name(view)
        self.view = view
        self._clock = clock or SystemClock()
        self.path = path
        self._serving_path = path / view
        self._state_dir = path / HEADRACE_DIR / view
        self._catalog = CatalogFolder(self._state_dir / CATALOG, view)
        self._catalog.create()
        self._tables: dict[Path, tuple[LakeTable, Upkeep]] = {}

    def close(self) -> None:
        self._tables.clear()

    # Ownership

    def claim(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        self.close()
        owners: list[Owner] = []

        def update(current: Catalog) -> Catalog:
            owner = next_owner(self.view, name, current.current_owner, before)
            owners[:] = [owner]
            return msgspec.structs.replace(
                current,
                epoch=owner.epoch,
                owner=owner.name,
                taken_ms=now_ms,
                building=self._copy(current.building, current),
            )

        catalog = self._catalog.change(update)
        self._fence_previous_owner(owners[0], catalog)
        # Only now, because until then the previous owner could still change which folder is the kept table.
        self._remove_orphans(catalog)
        return owners[0]

    def _copy(self, name: str, current: Catalog) -> str:
        """Copy the table in the folder ``name`` to a new folder. Return the new folder's name, or an empty text if the
        table does not exist.
        """
        old, new = self._state_dir / name, new_folder_name(current)
        if not name or not self._is_table(old):
            return ""
        with translate_errors(old):
            try:
                copy_table(old, self._state_dir / new)
            except BaseException as error:
                shutil.rmtree(self._state_dir / new, ignore_errors=True)
                if isinstance(error, FileNotFoundError):
                    return ""
                raise
        return new

    def _fence_previous_owner(self, owner: Owner, catalog: Catalog) -> None:
        """Create a commit in the table, so that a previous owner that checked an older catalog fails to commit. The
        commit names an own copy of the kept table.
        """
        while True:
            table = self._table(self._serving_path)
            if table is None:
                return
            check_fence(self.view, Fence(owner, 0), self._catalog.read().current_owner, None)
            with translate_errors(self._serving_path), contextlib.suppress(PositionMoved):
                commit_state = table.commit_state
                if commit_state is not None:
                    fault = "data files of the table are missing" if table.lacks_files() else ""
                    commit_state = msgspec.structs.replace(
                        commit_state,
                        # If files are missing, the table is not readable, and the follower must rebuild it.
                        fault=fault or commit_state.fault,
                        kept=self._copy(kept_folder(table), catalog),
                    )
                table.commit_without_rows(commit_state)
                return

    def _change(self, update: Callable[[Catalog], Catalog]) -> Catalog:
        catalog = self._catalog.change(update)
        self._remove_orphans(catalog)
        return catalog

    def _remove_orphans(self, catalog: Catalog) -> None:
        """Remove folders that neither this version of the catalog nor the serving table names, and that no later
        version can name.
        """
        current_names = {catalog.building, kept_folder(self._table(self._serving_path))}
        with translate_os_errors(self._state_dir):
            for path in list(self._state_dir.iterdir()):
                if path.name not in current_names:
                    self._remove_orphan(path, catalog)

    def _remove_orphan(self, path: Path, catalog: Catalog) -> None:
        if 0 <= version_of_folder(path.name) <= catalog.number:
            self._tables.pop(path, None)
            # Rename the folder first, so that another process finds it either complete or not at all.
            with contextlib.suppress(FileNotFoundError):
                path = self._move_to_trash(path)
        if path.name.startswith(_TRASH):
            shutil.rmtree(path, ignore_errors=True)

    def _move_to_trash(self, path: Path) -> Path:
        """Rename the folder. The next change of the catalog deletes it."""
        return path.rename(self._state_dir / f"{_TRASH}{uuid.uuid4().hex}")

    # State and rows

    def _folder(self, catalog: Catalog, part: Part) -> Path | None:
        path = self._serving_path
        if part is not Part.SERVING:
            is_kept = part is Part.KEPT
            name = kept_folder(self._table(self._serving_path)) if is_kept else catalog.building
            if not name:
                return None
            path = self._state_dir / name
        if self._is_table(path):
            return path
        if path in self._tables:
            del self._tables[path]
            raise removed_error(path)
        return None

    def _is_table(self, path: Path) -> bool:
        with translate_os_errors(path):
            return newest_version(path) is not None

    def _table(self, path: Path | None) -> LakeTable | None:
        """Return the table at its newest version, or None if it does not exist."""
        if path is None or not self._is_table(path):
            return None
        with translate_errors(path):
            if path not in self._tables:
                table = LakeTable(path)
                if not table.is_ours:
                    raise StoreForeign(
                        f"{path} has a Delta table that no follower created",
                        hint="choose another folder for the store, or rename the view; the table was not changed",
                    )
                self._tables[path] = (table, Upkeep(table, self._clock))
            table, _ = self._tables[path]
            try:
                table.refresh()
            except BaseException:
                del self._tables[path]
                raise
            return table

    def state(self, part: Part) -> ViewState | None:
        return self._state(self._catalog.read(), part)

    def _state(self, catalog: Catalog, part: Part) -> ViewState | None:
        table = self._table(self._folder(catalog, part))
        return None if table is None else table.state

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        table = self._table(self._folder(self._catalog.read(), part))
        if table is None or table.state is None:
            raise PositionMoved(f"view {self.view!r} has no {part} table in {self.path}")
        with translate_errors(table.folder):
            yield from sorted(table.rows(), key=key_order(table.state.schema))

    # Writes. A write to an existing table reads the table first, and then checks the owner in the catalog.

    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        created: list[ViewState] = []

        def update(current: Catalog) -> Catalog:
            check_fence(self.view, fence, current.current_owner, None)
            commit_state = CommitState(
                position, schema.to_json(), current.rebuild_requests, reason, Columns(schema).names
            )
            if self._state(current, Part.SERVING) is None:
                self._check_path_free(commit_state.columns)
            folder = new_folder_name(current)
            with translate_errors(self._state_dir / folder):
                try:
                    table = LakeTable.create(self._state_dir / folder, schema, commit_state)
                except BaseException:
                    shutil.rmtree(self._state_dir / folder, ignore_errors=True)
                    raise
            self._tables[table.folder] = (table, Upkeep(table, self._clock))
            created[:] = [commit_state.state]
            return msgspec.structs.replace(current, building=folder)

        self._change(update)
        return created[0]

    def _check_path_free(self, columns: Sequence[str]) -> None:
        path = self._serving_path
        if self._is_table(path):
            return
        with translate_os_errors(path):
            if not path.exists():
                return
            if path.is_dir() and has_only_leftovers(path, columns):
                self._move_to_trash(path)
                return
        raise StoreForeign(
            f"{path} contains files that no follower created",
            hint="choose another folder for the store, or rename the view; the folder was not changed",
        )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        table = self._check(self._catalog.read(), part, before, fence)
        if after.generation != fence.generation:
            check_fence(self.view, fence, fence.owner, after.generation)
        assert table is not None
        with self._translate_write_errors(table.folder, fence):
            table.apply(changes, after)
        with self._translate_write_errors(table.folder, fence), contextlib.suppress(PositionMoved):
            # Ignore the conflict if another program compacts the table at the same time.
            self._tables[table.folder][1].after_commit()

    @contextlib.contextmanager
    def _translate_write_errors(self, path: Path, fence: Fence) -> Iterator[None]:
        try:
            with translate_errors(path):
                yield
        except (OverflowError, UnicodeError):
            raise
        except BaseException:
            table, _ = self._tables.pop(path, (None, None))
            # The reason may be that another follower claimed the view, or that a user removed the table.
            check_fence(self.view, fence, self._catalog.read().current_owner, None)
            with translate_os_errors(path):
                if table is not None and not table.exists():
                    raise removed_error(path) from None
            raise

    def _check(
        self, catalog_before: Catalog, part: Part, before: Position | None, fence: Fence
    ) -> LakeTable | None:
        """Return the part's table. Raise unless the fence is current and the part is at the position ``before``."""
        table = self._table(self._folder(catalog_before, part))
        state = None if table is None else table.state
        position = None if state is None else state.position
        # Read the catalog again, because it must be read after the table.
        catalog = self._catalog.read()
        check_fence(self.view, fence, catalog.current_owner, position.generation if position else None)
        if part is Part.BUILDING and catalog.building != catalog_before.building:
            position = None
        check_position(self.view, str(self.path), before, position)
        if state is not None and state.fault:
            raise PositionMoved(
                f"the table of view {self.view!r} in {self.path} changed: {state.fault}",
                hint="the follower rebuilds the view; do not write to this table: copy it and change the copy",
            )
        return table

    def swap(self, fence: Fence, keep: bool = False) -> None:
        serving = self._table(self._serving_path)
        catalog = self._catalog.read()
        built = self._check(catalog, Part.BUILDING, None, fence)
        assert built is not None
        if serving is not None:
            with self._translate_write_errors(serving.folder, fence), translate_errors(built.folder):
                kept = self._link_copy(serving, catalog) if keep else ""
                serving.replace(built, kept or kept_folder(serving))
        else:
            self._tables.clear()
            with self._translate_write_errors(built.folder, fence):
                self._move_to_serving(built)
        self._write_version(fence, building="")

    def _write_version(self, fence: Fence, **changed: str) -> None:
        """Write a new version of the catalog. So folders that are not named any more are removed."""

        def update(current: Catalog) -> Catalog:
            check_fence(self.view, fence, current.current_owner, None)
            return msgspec.structs.replace(current, **changed)

        self._change(update)

    def _move_to_serving(self, built: LakeTable) -> None:
        self._check_path_free(built.columns().names)
        built.folder.rename(self._serving_path)
        sync_folder(self.path)

    def _link_copy(self, serving: LakeTable, catalog: Catalog) -> str:
        """Create a table with links to the files of the serving table. Return the folder's name, or an empty text if
        the serving table has a fault.
        """
        if serving.state is None or serving.state.fault:
            return ""
        name = new_folder_name(catalog)
        try:
            LakeTable.create_copy(self._state_dir / name, serving)
        except BaseException:
            shutil.rmtree(self._state_dir / name, ignore_errors=True)
            raise
        return name

    def swap_back(self, fence: Fence) -> None:
        serving = self._table(self._serving_path)
        catalog = self._catalog.read()
        state = self._state(catalog, Part.KEPT)
        owner = self._catalog.read().current_owner
        check_kept(self.view, str(self.path), fence, owner, state.position if state else None)
        kept = self._check(catalog, Part.KEPT, None, fence)
        assert kept is not None
        assert kept.commit_state is not None
        assert serving is not None
        with self._translate_write_errors(serving.folder, fence), translate_errors(kept.folder):
            requests = max(
                table.state.rebuild_requests for table in (serving, kept) if table.state is not None
            )
            commit_state = msgspec.structs.replace(
                kept.commit_state, rebuild_requests=requests, kept=self._link_copy(serving, catalog)
            )
            serving.replace_files(kept, commit_state)
        self._write_version(fence)

    def drop(self, part: Part, fence: Fence) -> None:
        check_droppable(self.view, part)
        if part is Part.BUILDING:
            self._write_version(fence, building="")
            return
        serving = self._table(self._serving_path)
        check_fence(self.view, fence, self._catalog.read().current_owner, None)
        if serving is not None and serving.commit_state is not None and serving.commit_state.kept:
            with self._translate_write_errors(serving.folder, fence):
                serving.commit_without_rows(msgspec.structs.replace(serving.commit_state, kept=""))
        self._write_version(fence)
