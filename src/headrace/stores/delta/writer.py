"""Writes one view as a Delta table. Its path never changes, and any query engine for Delta can read it.

    <app>.lake/<view>/                               the serving table
    <app>.lake/_headrace/<view>/catalog/0000…7.json  names the owner (``headrace.stores.catalog``)
    <app>.lake/_headrace/<view>/7-5f0c…/             the building table, until it becomes the serving table

**Rows match the position**: the commit that writes the rows also contains the position
(``headrace.stores.delta.layout``).

**Only the owner writes the serving table**: to claim the view, a follower first writes its name into the catalog, and
then creates a commit in the table. To write rows, a follower reads the table, then the catalog, and commits on top of
the table's version that it read. If a previous owner read the old catalog, it read the table before the new owner's
commit. So the commit of the previous owner fails. The building table belongs to one owner: a claim copies it (with
shared files) and moves the old folder away.

**A swap is atomic**: the first swap renames the folder. Each later swap is a commit that replaces all rows and columns,
so the path remains and the version numbers continue. Readers of an older version are not affected.

A crash leaves the version before or after the change. It can leave files that no version uses, and folders that the
catalog does not name; the next owner removes them. After a crash between the rename and the change of the catalog, the
catalog names a building folder that does not exist. The view then counts as having no building part.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.files import DIR_MODE, make_private_dir
from headrace.stores.catalog import (
    Catalog,
    CatalogFolder,
    CatalogWriter,
    new_folder_name,
    sync_folder,
    version_of_folder,
    write_synced,
)
from headrace.stores.delta.layout import (
    CATALOG,
    CHECKPOINT,
    HEADRACE_DIR,
    LOG,
    Columns,
    CommitState,
    has_only_leftovers,
    newest_version,
)
from headrace.stores.delta.table import LakeTable
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
    check_fence,
    check_position,
    check_view_name,
    is_older,
    next_owner,
)

__all__ = ["DeltaWriter", "copy_table"]

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
                building=self._copy_building(current),
            )

        self._change(update)
        self._fence_previous_owner()
        return owners[0]

    def _copy_building(self, current: Catalog) -> str:
        """Copy the building table to a new folder. Return the folder's name, or an empty text if the table does not
        exist.
        """
        old = self._folder(current, Part.BUILDING)
        if old is None:
            return ""
        new = new_folder_name(current)
        with translate_errors(old):
            try:
                copy_table(old, self._state_dir / new)
            except BaseException as error:
                shutil.rmtree(self._state_dir / new, ignore_errors=True)
                if isinstance(error, FileNotFoundError):
                    return ""
                raise
        return new

    def _fence_previous_owner(self) -> None:
        """Create a commit in the table, so that a previous owner that checked an older catalog fails to commit."""
        while True:
            table = self._table(self._serving_path)
            if table is None:
                return
            with translate_errors(self._serving_path), contextlib.suppress(PositionMoved):
                commit_state = table.commit_state
                if commit_state is not None and table.lacks_files():
                    # The table is not readable, so the follower must rebuild it.
                    commit_state = msgspec.structs.replace(
                        commit_state, fault="data files of the table are missing"
                    )
                table.commit_without_rows(commit_state)
                return

    def _change(self, update: Callable[[Catalog], Catalog]) -> Catalog:
        catalog = self._catalog.change(update)
        with translate_os_errors(self._state_dir):
            for path in list(self._state_dir.iterdir()):
                self._remove_orphan(path, catalog)
        return catalog

    def _remove_orphan(self, path: Path, catalog: Catalog) -> None:
        """Remove a folder that this version of the catalog does not name, and that no later version can name."""
        if 0 <= version_of_folder(path.name) <= catalog.number and path.name != catalog.building:
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
        path = self._serving_path if part is Part.SERVING else self._state_dir / catalog.building
        if part is Part.BUILDING and not catalog.building:
            return None
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
            serving = self._state(current, Part.SERVING)
            if serving is not None and is_older(position, serving.position):
                check_fence(self.view, fence, current.current_owner, serving.position.generation)
            commit_state = CommitState(
                position, schema.to_json(), current.rebuild_requests, reason, Columns(schema).names
            )
            if serving is None:
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

    def swap(self, fence: Fence) -> None:
        serving = self._table(self._serving_path)
        built = self._check(self._catalog.read(), Part.BUILDING, None, fence)
        assert built is not None
        if serving is not None:
            with self._translate_write_errors(serving.folder, fence), translate_errors(built.folder):
                serving.replace(built)
        else:
            self._tables.clear()
            with self._translate_write_errors(built.folder, fence):
                self._move_to_serving(built)

        def update(current: Catalog) -> Catalog:
            check_fence(self.view, fence, current.current_owner, None)
            return msgspec.structs.replace(current, building="")

        self._change(update)

    def _move_to_serving(self, built: LakeTable) -> None:
        self._check_path_free(built.columns().names)
        built.folder.rename(self._serving_path)
        sync_folder(self.path)

    def drop_building(self, fence: Fence) -> None:
        def update(current: Catalog) -> Catalog:
            check_fence(self.view, fence, current.current_owner, None)
            return msgspec.structs.replace(current, building="")

        self._change(update)


def copy_table(old: Path, new: Path) -> None:
    """Create ``new`` as a copy of the table ``old``. Both share their files, which never change after they are written.

    Raises FileNotFoundError if ``old`` does not exist. This function copies the log before the data files. When it
    copies the log, all files of the newest version exist. Afterwards the writer removes only files that this version
    does not use.
    """
    make_private_dir(new)
    (new / LOG).mkdir(DIR_MODE)
    for path in sorted((old / LOG).iterdir()):
        if path.suffix == ".json" or path.name.endswith(CHECKPOINT):
            _link(path, new / LOG / path.name)
        elif path.name == "_last_checkpoint":
            # This file is overwritten in place.
            write_synced(new / LOG / path.name, path.read_bytes())
    for path in old.glob("*.parquet"):
        _link(path, new / path.name)
    sync_folder(new / LOG)
    sync_folder(new)
    sync_folder(new.parent)
    if LakeTable(new).lacks_files():
        raise FileNotFoundError(f"data files are missing in {old}")


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except FileNotFoundError:
        if not old.parent.exists():
            raise
        # The writer removed the file, because no version uses it any more.
