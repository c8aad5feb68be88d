"""A snapshot of a view in a Delta table.

The table's folder has the view's name. The position is in the ``commitInfo`` of the follower's newest commit, under
``headrace``. Rows and position are read from the same version of the table.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headrace.ops.verify.comparison import Scratch
from headrace.ops.verify.errors import StoreUnreadable
from headrace.ops.verify.plain_rows import Value, column_type
from headrace.ops.verify.snapshot import StoreSnapshot, not_serving, snapshot_of

__all__ = ["read_delta"]

_ATTEMPTS_MAX = 20
_MISSING_FILE = re.compile(r"\(os error 2\)|file not found", re.IGNORECASE)
"""The library has different error messages for a missing data file and a missing log file."""


def read_delta(folder: Path, path: Path, view: str) -> tuple[StoreSnapshot, Scratch]:
    """Return the position, and the rows in a scratch file in ``folder``."""
    for number in range(_ATTEMPTS_MAX - 1):
        attempt = folder / f"try-{number}"
        attempt.mkdir()
        try:
            return _read(attempt, path, view)
        except StoreUnreadable as error:
            # The files of an old version can be removed while it is read. Then a newer version exists: read that.
            if not _is_missing_file(error.__cause__):
                raise
            shutil.rmtree(attempt)
    return _read(folder, path, view)


def _is_missing_file(error: BaseException | None) -> bool:
    return isinstance(error, FileNotFoundError) or _MISSING_FILE.search(str(error)) is not None


def _read(folder: Path, path: Path, view: str) -> tuple[StoreSnapshot, Scratch]:
    table_dir = path / view
    with _translate_errors(table_dir):
        try:
            table = DeltaTable(str(table_dir))
        except TableNotFoundError as error:
            raise not_serving(view, str(table_dir)) from error
        state = _commit_state(table_dir, table.version())
        snapshot = snapshot_of(str(path), view, state["position"], state["shape"])
        names = [field.name for field in table.schema().fields]
        if names != state["columns"]:
            raise StoreUnreadable(
                f"the table in {table_dir} was changed after its follower created it",
                detail=f"the table has the columns {', '.join(names)}",
                hint="recreate it with headrace view rebuild; to change a table, change a copy of it",
            )
    connection = Scratch.open(folder)
    try:
        columns = [(field.name, column_type(field)) for field in snapshot.fields]
        scratch = Scratch(connection, columns, snapshot.key)
        row_count = [0]
        with _translate_errors(table_dir):
            scratch.put("found", _rows(table, names, row_count))
        if scratch.count("found") != row_count[0]:
            raise StoreUnreadable(
                f"{table_dir} has duplicate keys: {row_count[0]} rows, {scratch.count('found')} keys",
                hint="recreate the table with headrace view rebuild",
            )
    except BaseException:
        connection.close()
        raise
    return snapshot, scratch


def _commit_state(table_dir: Path, version: int) -> dict[str, Any]:
    """Return the state in the newest commit of a follower."""
    missing: FileNotFoundError | None = None
    for number in range(version, -1, -1):
        try:
            lines = (table_dir / "_delta_log" / f"{number:020}.json").read_bytes().splitlines()
        except FileNotFoundError as error:
            missing = error
            break
        for line in filter(None, lines):
            text = msgspec.json.decode(line).get("commitInfo", {}).get("headrace")
            if text is not None:
                state: dict[str, Any] = msgspec.json.decode(text)
                return state
    raise StoreUnreadable(
        f"no commit of {table_dir} has a position",
        hint="check that a follower created the table; headrace view rebuild recreates it",
    ) from missing


def _rows(table: DeltaTable, names: list[str], row_count: list[int]) -> Iterator[tuple[Value, ...]]:
    for batch in table.to_pyarrow_dataset().to_batches():
        row_count[0] += batch.num_rows
        for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            yield tuple(map(_scratch_value, row))


def _scratch_value(value: Any) -> Any:
    """Convert a value to the log's text form."""
    match value:
        case bool():
            return int(value)
        case float():
            return value if value == value else "NaN"
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").zfill(27)
        case date():
            return value.isoformat()
    return value


@contextlib.contextmanager
def _translate_errors(table_dir: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, DeltaError, msgspec.MsgspecError) as error:
        raise StoreUnreadable(
            f"cannot read {table_dir}: {error}",
            hint="if the table is damaged, move its folder away: the follower rebuilds the view from the log",
        ) from error
