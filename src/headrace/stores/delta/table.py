"""One Delta table, which contains one part of a view.

Every commit is based on the version that was read, and fails without a retry if a newer version exists. So checks of
the version that was read are still valid for the new version.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from headrace.files import DIR_MODE, make_private_dir
from headrace.stores.catalog import is_folder_name, sync_folder, write_synced
from headrace.stores.delta.layout import (
    CHECKPOINT,
    COMMIT_KEY,
    DELETED,
    LOG,
    Columns,
    CommitState,
    newest_version,
    state_at,
)
from headrace.stores.errors import PositionMoved
from headrace.stores.file_errors import removed_error
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row
from headrace.stores.writer import Changes

__all__ = ["DESCRIPTION", "LakeTable", "copy_table", "kept_folder"]

DESCRIPTION = "A view, kept by Headrace: what is changed here by others is lost"
_FILE_BYTES = 32 << 20
_NO_STATISTICS = ColumnProperties(statistics_enabled="NONE")
# ``upkeep`` cleans the log instead, because it knows which versions readers might still use.
_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class LakeTable:
    """One version of a table. ``refresh`` loads the newest version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inode = os.stat(folder).st_ino  # noqa: PTH116
        self.delta = DeltaTable(str(folder))
        self.commit_state = state_at(folder, self.delta.version())
        self._columns: tuple[str, Columns] | None = None

    @classmethod
    def create(cls, folder: Path, schema: ViewSchema, commit_state: CommitState) -> LakeTable:
        make_private_dir(folder.parent)
        folder.mkdir(DIR_MODE)
        DeltaTable.create(
            str(folder),
            Schema.from_arrow(Columns(schema).schema),
            description=DESCRIPTION,
            commit_properties=_commit_properties(commit_state),
        )
        return cls(folder)

    @classmethod
    def create_copy(cls, folder: Path, source: LakeTable) -> LakeTable:
        """Create a table with the rows of ``source``, whose files become links in ``folder``."""
        assert source.commit_state is not None
        commit_state = msgspec.structs.replace(source.commit_state, kept="")
        table = cls.create(folder, ViewSchema.parse(commit_state.schema), commit_state)
        table.replace_files(source, commit_state)
        return table

    @property
    def state(self) -> ViewState | None:
        return None if self.commit_state is None else self.commit_state.state

    @property
    def version(self) -> int:
        version: int = self.delta.version()
        return version

    @property
    def is_ours(self) -> bool:
        return str(self.delta.metadata().description) == DESCRIPTION

    def refresh(self) -> None:
        newest, version = newest_version(self.folder), self.version
        if newest is None or newest < version or not self._is_same_folder():
            raise removed_error(self.folder)
        if newest > version:
            self.delta.update_incremental()
            self.commit_state = state_at(self.folder, self.version)

    def exists(self) -> bool:
        """Return False if the table was removed or replaced."""
        return newest_version(self.folder) is not None and self._is_same_folder()

    def _is_same_folder(self) -> bool:
        return os.stat(self.folder).st_ino == self._inode  # noqa: PTH116

    def columns(self) -> Columns:
        assert self.commit_state is not None
        if self._columns is None or self._columns[0] != self.commit_state.schema:
            schema = self.commit_state.schema
            self._columns = (schema, Columns(ViewSchema.parse(schema)))
        return self._columns[1]

    # Writes. Each write is one commit, based on the version that was read.

    def apply(self, changes: Changes, after: Position) -> None:
        assert self.commit_state is not None
        commit_state = msgspec.structs.replace(self.commit_state, position=after)
        if not len(changes):
            self.commit_without_rows(commit_state)
            return
        columns = self.columns()
        source = columns.changes(changes.upserts, changes.deletes)
        merge = self.delta.merge(
            source,
            " AND ".join(f't."{name}" = s."{name}"' for name in columns.keys),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            writer_properties=_writer_properties(columns),
            commit_properties=_commit_properties(commit_state),
            post_commithook_properties=_HOOKS,
        )
        values = {f'"{name}"': f's."{name}"' for name in columns.names}
        if changes.deletes:
            merge = merge.when_matched_delete(f's."{DELETED}"')
        if changes.upserts:
            merge = merge.when_matched_update(values, predicate=f'NOT s."{DELETED}"')
            merge = merge.when_not_matched_insert(values, predicate=f'NOT s."{DELETED}"')
        before = self.version
        with _conflict_errors(self.folder):
            merge.execute()
        if self.version == before:
            # A merge that only deletes missing keys does not create a commit.
            self.commit_without_rows(commit_state)
        self.commit_state = commit_state

    def commit_without_rows(self, commit_state: CommitState | None) -> None:
        with _conflict_errors(self.folder):
            self.delta.create_write_transaction(
                [],
                "append",
                self.delta.schema(),
                commit_properties=_commit_properties(commit_state),
                post_commithook_properties=_HOOKS,
            )
        self.delta.update_incremental()
        self.commit_state = commit_state

    def replace(self, built: LakeTable, kept: str) -> None:
        """Replace all rows and columns by those of another table. ``kept`` is the folder of the kept part."""
        assert built.commit_state is not None
        commit_state = msgspec.structs.replace(built.commit_state, kept=kept)
        with _conflict_errors(self.folder):
            write_deltalake(
                self.delta,
                built.reader(),
                mode="overwrite",
                schema_mode="overwrite",
                target_file_size=_FILE_BYTES,
                writer_properties=_writer_properties(built.columns()),
                commit_properties=_commit_properties(commit_state),
                post_commithook_properties=_HOOKS,
            )
        self.commit_state = commit_state

    def replace_files(self, source: LakeTable, commit_state: CommitState) -> None:
        """Replace all rows and columns by those of another table, whose files become links in this folder. So the
        time does not depend on the number of rows.
        """
        with _conflict_errors(self.folder):
            self.delta.create_write_transaction(
                source.link_files(self.folder),
                "overwrite",
                source.delta.schema(),
                commit_properties=_commit_properties(commit_state),
                post_commithook_properties=_HOOKS,
            )
        self.delta.update_incremental()
        self.commit_state = commit_state

    def link_files(self, folder: Path) -> list[AddAction | RemoveAction]:
        """Create links to the data files in ``folder``. Return the actions that add them to a table.

        The links have new names, so that a table never gets a file again that an earlier version of it removed. The
        upkeep could delete such a file.
        """
        files = pa.table(self.delta.get_add_actions(flatten=True))
        paths, sizes, statistics = files["path"], files["size_bytes"], self.columns().statistics(files)
        actions: list[AddAction | RemoveAction] = []
        for path, size, text in zip(paths.to_pylist(), sizes.to_pylist(), statistics, strict=True):
            name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
            # The upkeep deletes old files that no version uses. The new link is not in a version yet.
            os.utime(self.folder / path)
            os.link(self.folder / path, folder / name)
            modified_ms = int((folder / name).stat().st_mtime * 1_000)
            actions.append(AddAction(name, size, {}, modified_ms, data_change=True, stats=text))
        sync_folder(folder)
        return actions

    def compact(self) -> None:
        """Merge small files."""
        assert self.commit_state is not None
        with _conflict_errors(self.folder):
            self.delta.optimize.compact(
                target_size=_FILE_BYTES,
                writer_properties=_writer_properties(self.columns()),
                commit_properties=_commit_properties(self.commit_state),
                post_commithook_properties=_HOOKS,
            )

    def checkpoint(self) -> None:
        self.delta.create_checkpoint()

    # Reads

    def reader(self, where: Any = None) -> pa.RecordBatchReader:
        """Read the rows that match the Arrow expression ``where``. Arrow skips files without matching rows."""
        return self.delta.to_pyarrow_dataset().scanner(filter=where).to_reader()

    def rows(self, where: Any = None) -> Iterator[Row]:
        """Yield the rows in any order."""
        columns = self.columns()
        for batch in self.reader(where):
            yield from columns.rows(batch)

    def count(self) -> int:
        return int(self.delta.count())

    def files(self) -> dict[str, int]:
        """The data files of this version, with their sizes in bytes."""
        actions = self.delta.get_add_actions(flatten=True)
        return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))

    def lacks_files(self) -> bool:
        """Return whether data files of this version are missing or incomplete."""
        return any(_size(self.folder / path) != size for path, size in self.files().items())


def kept_folder(serving: LakeTable | None) -> str:
    """Return the folder of the kept table; empty if the kept part does not exist."""
    name = "" if serving is None or serving.commit_state is None else serving.commit_state.kept
    return name if is_folder_name(name) else ""


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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _writer_properties(columns: Columns) -> WriterProperties:
    without_statistics = dict.fromkeys(columns.inexact, _NO_STATISTICS)
    return WriterProperties(compression="SNAPPY", column_properties=without_statistics or None)


def _commit_properties(commit_state: CommitState | None) -> CommitProperties:
    metadata = {} if commit_state is None else {COMMIT_KEY: msgspec.json.encode(commit_state).decode()}
    return CommitProperties(custom_metadata=metadata, max_commit_retries=0)


@contextlib.contextmanager
def _conflict_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise PositionMoved(
            f"another program changed {folder} at the same time: {error}",
            hint="the follower continues from the table's position",
        ) from error
