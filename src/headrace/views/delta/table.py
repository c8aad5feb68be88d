"""One Delta table that holds a part of a view.

A commit here is built upon the version that was looked at, and fails if there is a newer one (no retries): so what was
checked of that version holds for the one that is made.
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

from headrace.private import DIR_MODE, make_private_dir
from headrace.views.changes import Changes
from headrace.views.delta.columns import GONE, Columns
from headrace.views.delta.log import COMMIT_KEY, Told, newest_version, told_at
from headrace.views.errors import PositionMoved, StoreReplaced
from headrace.views.position import Position, Shape
from headrace.views.rows import Row

__all__ = ["DESCRIPTION", "LakeTable"]

DESCRIPTION = "A view, kept by Headrace: what is changed here by others is lost"
_FILE_BYTES = 32 << 20
_NO_BOUNDS = ColumnProperties(statistics_enabled="NONE")
# The log is cleaned by ``upkeep``, which knows what is still read.
_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class LakeTable:
    """As of one version; ``look`` goes to the newest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inode = os.stat(folder).st_ino  # noqa: PTH116
        self.delta = DeltaTable(str(folder))
        self.told = told_at(folder, self.delta.version())
        self._columns: tuple[str, Columns] | None = None

    @classmethod
    def create(cls, folder: Path, shape: Shape, told: Told) -> LakeTable:
        make_private_dir(folder.parent)
        folder.mkdir(DIR_MODE)
        DeltaTable.create(
            str(folder),
            Schema.from_arrow(Columns(shape).schema),
            description=DESCRIPTION,
            commit_properties=_properties(told),
        )
        return cls(folder)

    @property
    def version(self) -> int:
        version: int = self.delta.version()
        return version

    @property
    def is_ours(self) -> bool:
        return str(self.delta.metadata().description) == DESCRIPTION

    def look(self) -> None:
        newest, at = newest_version(self.folder), self.version
        if newest is None or newest < at or not self._is_same_folder():
            raise StoreReplaced(
                f"{self.folder} was removed or replaced while it was open",
                hint="the view goes on with what is there now, or is built again",
            )
        if newest > at:
            self.delta.update_incremental()
            self.told = told_at(self.folder, self.version)

    def is_there(self) -> bool:
        """Whether it has not been removed or replaced by another."""
        return newest_version(self.folder) is not None and self._is_same_folder()

    def _is_same_folder(self) -> bool:
        return os.stat(self.folder).st_ino == self._inode  # noqa: PTH116

    def columns(self) -> Columns:
        assert self.told is not None
        if self._columns is None or self._columns[0] != self.told.shape:
            self._columns = (self.told.shape, Columns(Shape.told(self.told.shape)))
        return self._columns[1]

    # What changes it: each is one commit, upon the version that was looked at

    def apply(self, changes: Changes, after: Position) -> None:
        assert self.told is not None
        told = msgspec.structs.replace(self.told, position=after)
        if not len(changes):
            self.note(told)
            return
        columns = self.columns()
        source = columns.changes(changes.upserts, changes.deletes)
        merge = self.delta.merge(
            source,
            " AND ".join(f't."{name}" = s."{name}"' for name in columns.keys),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            writer_properties=_writing(columns),
            commit_properties=_properties(told),
            post_commithook_properties=_HOOKS,
        )
        values = {f'"{name}"': f's."{name}"' for name in columns.names}
        if changes.deletes:
            merge = merge.when_matched_delete(f's."{GONE}"')
        if changes.upserts:
            merge = merge.when_matched_update(values, predicate=f'NOT s."{GONE}"')
            merge = merge.when_not_matched_insert(values, predicate=f'NOT s."{GONE}"')
        before = self.version
        with _fenced(self.folder):
            merge.execute()
        if self.version == before:
            # Only keys that are not there were deleted, and that makes no commit.
            self.note(told)
        self.told = told

    def note(self, told: Told | None) -> None:
        """No rows change, or none of which anybody knows."""
        with _fenced(self.folder):
            self.delta.create_write_transaction(
                [],
                "append",
                self.delta.schema(),
                commit_properties=_properties(told),
                post_commithook_properties=_HOOKS,
            )
        self.delta.update_incremental()
        self.told = told

    def replace(self, built: LakeTable) -> None:
        """All rows and the columns, by those of another table."""
        assert built.told is not None
        with _fenced(self.folder):
            write_deltalake(
                self.delta,
                built.reader(),
                mode="overwrite",
                schema_mode="overwrite",
                target_file_size=_FILE_BYTES,
                writer_properties=_writing(built.columns()),
                commit_properties=_properties(built.told),
                post_commithook_properties=_HOOKS,
            )
        self.told = built.told

    def compact(self) -> None:
        """Small files become one."""
        assert self.told is not None
        with _fenced(self.folder):
            self.delta.optimize.compact(
                target_size=_FILE_BYTES,
                writer_properties=_writing(self.columns()),
                commit_properties=_properties(self.told),
                post_commithook_properties=_HOOKS,
            )

    def checkpoint(self) -> None:
        self.delta.create_checkpoint()

    # What is in it

    def reader(self, where: Any = None) -> pa.RecordBatchReader:
        """``where`` is an expression of Arrow: files that have nothing of it are not opened."""
        return self.delta.to_pyarrow_dataset().scanner(filter=where).to_reader()

    def rows(self, where: Any = None) -> Iterator[Row]:
        """In no order."""
        columns = self.columns()
        for batch in self.reader(where):
            yield from columns.rows(batch)

    def count(self) -> int:
        return int(self.delta.count())

    def live(self) -> dict[str, int]:
        """The files of this version, and their sizes."""
        found = self.delta.get_add_actions(flatten=True)
        return dict(zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True))

    def has_lost_files(self) -> bool:
        """Whether somebody has removed some that this version has, or they have never been whole on the disk."""
        return any(_size(self.folder / path) != size for path, size in self.live().items())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _writing(columns: Columns) -> WriterProperties:
    without = dict.fromkeys(columns.inexact, _NO_BOUNDS)
    return WriterProperties(compression="SNAPPY", column_properties=without or None)


def _properties(told: Told | None) -> CommitProperties:
    said = {} if told is None else {COMMIT_KEY: msgspec.json.encode(told).decode()}
    return CommitProperties(custom_metadata=said, max_commit_retries=0)


@contextlib.contextmanager
def _fenced(folder: Path) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise PositionMoved(
            f"{folder} was changed by somebody else meanwhile: {error}",
            hint="the view goes on from where the table is",
        ) from error
