"""One Delta table, which contains one part of a view.

Every commit is based on the version that was read, and fails without a retry if a newer version exists. So checks of
the version that was read are still valid for the new version.
"""

from __future__ import annotations

import contextlib
import os
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

from headrace.files import DIR_MODE, make_private_dir
from headrace.stores.delta.layout import COMMIT_KEY, DELETED, Columns, CommitState, newest_version, state_at
from headrace.stores.errors import PositionMoved
from headrace.stores.file_errors import removed_error
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row
from headrace.stores.writer import Changes

__all__ = ["DESCRIPTION", "LakeTable"]

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

    def replace(self, built: LakeTable) -> None:
        """Replace all rows and columns by those of another table."""
        assert built.commit_state is not None
        with _conflict_errors(self.folder):
            write_deltalake(
                self.delta,
                built.reader(),
                mode="overwrite",
                schema_mode="overwrite",
                target_file_size=_FILE_BYTES,
                writer_properties=_writer_properties(built.columns()),
                commit_properties=_commit_properties(built.commit_state),
                post_commithook_properties=_HOOKS,
            )
        self.commit_state = built.commit_state

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
