"""The layout of a Delta table of a view: its columns, and the view's state in the table's log.

    text, enum            string
    int                   long
    float                 double; the text ``NaN`` becomes the number NaN
    bool                  boolean
    decimal               decimal, with the declared digits; string for more than 38 digits
    time                  timestamp, UTC, microseconds
    date                  date
    bytes                 binary
    list, map, record     string, JSON

A column has the same name as in the view, unless query engines do not accept the name. Then ``_`` replaces the
characters that are not allowed. If two names are then equal (engines ignore case), a number is appended.

The state of the view is in the ``commitInfo`` of the commit that wrote its rows:

    {"commitInfo": {"operation": "MERGE", …, "headrace": "{\\"position\\": …, \\"shape\\": …}"}}

In the serving table, the state also names the folder of the kept part. So one commit changes both the serving rows and
the kept part.

Every commit of a follower contains the state, including the commits that compact files. A commit of another program has
no state. Then the newest commit that has a state applies. If the other program only compacted files (``OPTIMIZE`` in
Spark), the rows are unchanged. If it changed rows or columns, ``ViewState.fault`` describes that. Every later commit of
a follower repeats this fault, until the follower rebuilds the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.model.codec.scalar_text import date_text, digits_text, time_text
from headrace.stores.arrow import arrow_type
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row

__all__ = [
    "CATALOG",
    "CHECKPOINT",
    "COMMIT_KEY",
    "DELETED",
    "HEADRACE_DIR",
    "LOG",
    "Columns",
    "CommitState",
    "actions_of",
    "column_names",
    "commit_path",
    "has_only_leftovers",
    "newest_version",
    "state_at",
    "version_of",
]

HEADRACE_DIR = "_headrace"
CATALOG = "catalog"
DELETED = "_headrace_gone"
COMMIT_KEY = "headrace"
LOG = "_delta_log"
CHECKPOINT = ".checkpoint.parquet"
_VERSION_CHARS = 20
_DISALLOWED_CHARS = re.compile(r"[\x00-\x20,;{}()=\"'`\\.:\x7f]")
_FLOAT_DIGITS = 15
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Columns


def column_names(names: Sequence[str]) -> list[str]:
    used = {DELETED}
    columns = []
    for name in names:
        allowed = _DISALLOWED_CHARS.sub("_", name) or "column"
        unique, number = allowed, 2
        while unique.lower() in used:
            unique, number = f"{allowed}_{number}", number + 1
        used.add(unique.lower())
        columns.append(unique)
    return columns


class Columns:
    """Converts rows of one schema to Arrow, and Arrow to rows."""

    def __init__(self, schema: ViewSchema) -> None:
        self.names = column_names(schema.names)
        self.keys = [self.names[index] for index in schema.key_indexes]
        types = [arrow_type(field) for field in schema.fields]
        self.schema = pa.schema(list(zip(self.names, types, strict=True)))
        self.inexact = [name for name, kind in zip(self.names, types, strict=True) if _is_inexact(kind)]
        """Columns whose minimum and maximum the log would store as inexact floats. Readers would then skip wrong
        files.
        """
        self._key_indexes = schema.key_indexes
        self._encoders = [_encoder(kind, index in schema.key_indexes) for index, kind in enumerate(types)]
        self._decoders = [_decoder(kind) for kind in types]

    def changes(self, upserts: Sequence[Row], deletes: Sequence[Row]) -> pa.Table:
        """Return a table of the rows to write and the keys to delete, which have the column ``DELETED`` set.

        Raises OverflowError or UnicodeEncodeError if a value cannot be encoded.
        """
        width = len(self.names)
        nulls = [None] * len(deletes)
        columns: list[Any] = list(zip(*upserts, strict=True)) if upserts else [()] * width
        keys = dict(zip(self._key_indexes, zip(*deletes, strict=True), strict=True)) if deletes else {}
        arrays = [
            encode([*columns[index], *keys.get(index, nulls)], column.type)
            for index, (encode, column) in enumerate(zip(self._encoders, self.schema, strict=True))
        ]
        deleted = pa.array([False] * len(upserts) + [True] * len(deletes))
        return pa.table([*arrays, deleted], schema=self.schema.append(pa.field(DELETED, pa.bool_())))

    def statistics(self, actions: pa.Table) -> list[str]:
        """Return the statistics of each data file for the log, from ``DeltaTable.get_add_actions(flatten=True)``.

        They have no minimum and maximum of floats and decimals, for which the log has inexact values.
        """
        files: list[dict[str, Any]] = [{"numRecords": count} for count in actions["num_records"].to_pylist()]
        for prefix, statistic in (("null_count", "nullCount"), ("min", "minValues"), ("max", "maxValues")):
            for name, decode, column in zip(self.names, self._decoders, self.schema, strict=True):
                is_inexact = pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
                if f"{prefix}.{name}" not in actions.column_names or (is_inexact and prefix != "null_count"):
                    continue
                values = actions[f"{prefix}.{name}"]
                texts = values.to_pylist() if prefix == "null_count" else decode(values)
                for file, value in zip(files, texts, strict=True):
                    if value is not None:
                        file.setdefault(statistic, {})[name] = value
        return [
            msgspec.json.encode({name: value for name, value in file.items() if value is not None}).decode()
            for file in files
        ]

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        columns = [
            decode(batch.column(name)) for name, decode in zip(self.names, self._decoders, strict=True)
        ]
        return zip(*columns, strict=True)


def _is_inexact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.precision > _FLOAT_DIGITS)


def _encoder(kind: pa.DataType, is_key: bool) -> Callable[[list[Any], pa.DataType], pa.Array]:
    if pa.types.is_int64(kind):
        return _encode_ints
    if pa.types.is_floating(kind):
        # Query engines distinguish -0.0 from 0.0, but in a key of the log both are equal.
        zero = 0.0 if is_key else -0.0
        return lambda values, to: pa.array(
            [None if value is None else float(value) + zero for value in values], to
        )
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return lambda values, to: pa.array(values, pa.string()).cast(to)
    return lambda values, to: pa.array(values, to)


def _encode_ints(values: list[Any], to: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, to)
    except pa.ArrowInvalid as error:
        raise OverflowError(str(error)) from error


def _decoder(kind: pa.DataType) -> Callable[[pa.Array], list[Any]]:
    if pa.types.is_floating(kind):
        return lambda array: [
            value if value is None or value == value else "NaN" for value in array.to_pylist()
        ]
    if pa.types.is_decimal(kind):
        return lambda array: [None if value is None else digits_text(value) for value in array.to_pylist()]
    if pa.types.is_date(kind):
        return lambda array: [None if value is None else date_text(value) for value in array.to_pylist()]
    if pa.types.is_timestamp(kind):
        return lambda array: [
            None if value is None else time_text(_EPOCH + timedelta(microseconds=value))
            for value in array.cast(pa.int64()).to_pylist()
        ]
    return lambda array: array.to_pylist()


# The log


class CommitState(msgspec.Struct, frozen=True):
    position: Position
    schema: str = msgspec.field(name="shape")
    rebuild_requests: int = msgspec.field(name="wish")
    reason: str
    columns: list[str]
    """The table's columns, in the order of the view's columns."""
    fault: str = ""
    kept: str = ""
    """The folder of the view's kept part, if this is the serving table and a kept part exists; otherwise empty."""

    @property
    def state(self) -> ViewState:
        schema = ViewSchema.parse(self.schema)
        return ViewState(schema, self.position, self.rebuild_requests, self.reason, self.fault)


def newest_version(table: Path) -> int | None:
    """Return the newest version, or None if no table exists.

    A log without its beginning is not a table: it is left over from a removal that was not atomic, or that a commit
    followed.
    """
    try:
        names = os.listdir(table / LOG)  # noqa: PTH208  before every batch
    except (FileNotFoundError, NotADirectoryError):
        return None
    if commit_path(table, 0).name not in names and not any(name.endswith(CHECKPOINT) for name in names):
        return None
    return max((version_of(name) for name in names), default=-1)


def version_of(name: str) -> int:
    """Return the version of a commit file, or -1 for other files of the log."""
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "json" and stem.isdigit() and len(stem) == _VERSION_CHARS else -1


def commit_path(table: Path, version: int) -> Path:
    return table / LOG / f"{version:020}.json"


def actions_of(table: Path, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit. Raise FileNotFoundError if the log no longer has the version."""
    return [
        msgspec.json.decode(line) for line in commit_path(table, version).read_bytes().splitlines() if line
    ]


def state_at(table: Path, version: int) -> CommitState | None:
    """Return the state of the rows at this version, or None if no commit contains a state."""
    fault = ""
    for earlier in range(version, -1, -1):
        try:
            actions = actions_of(table, earlier)
        except FileNotFoundError:
            return None
        text = next(
            (info[COMMIT_KEY] for info in _commit_infos(actions) if isinstance(info.get(COMMIT_KEY), str)),
            None,
        )
        if text is not None:
            state = msgspec.json.decode(text, type=CommitState)
            return msgspec.structs.replace(state, fault=fault) if fault else state
        if any(map(_changes_data, actions)):
            operation = next((info.get("operation") for info in _commit_infos(actions)), None)
            fault = (
                f"another program changed the table in version {earlier} ({operation or 'unnamed operation'})"
            )
    return None


def _commit_infos(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [action["commitInfo"] for action in actions if isinstance(action.get("commitInfo"), dict)]


def _changes_data(action: dict[str, Any]) -> bool:
    """Return whether the action changes rows or columns."""
    file = action.get("add") or action.get("remove")
    return "metaData" in action or (file is not None and file.get("dataChange") is not False)


# If a table is removed while its writer commits, the library creates the folder again for the file that it writes. The
# follower may delete such leftover files, but not files of other programs.

_DATA_FILE = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}(\.\w+)*\.parquet")
_UNFINISHED_FILE = re.compile(
    r"(part-\d{5}-[0-9a-f-]{36}-c\d{3}(\.\w+)*\.parquet|\d{20}\.json)#\d+|_commit_.*\.tmp"
)
_OUR_LIBRARIES = ("delta-rs", "parquet-rs")


def has_only_leftovers(folder: Path, columns: Sequence[str]) -> bool:
    """Return whether a folder without a table contains only data files with these columns and commits of a follower."""
    return all(
        all(map(_is_our_commit, path.iterdir()))
        if path.name == LOG and path.is_dir()
        else _is_our_data(path, columns)
        for path in folder.iterdir()
    )


def _is_our_data(path: Path, columns: Sequence[str]) -> bool:
    if _UNFINISHED_FILE.fullmatch(path.name):
        return True
    if not _DATA_FILE.fullmatch(path.name):
        return False
    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    return bool(
        metadata.created_by.startswith(_OUR_LIBRARIES)
        and metadata.schema.to_arrow_schema().names == list(columns)
    )


def _is_our_commit(path: Path) -> bool:
    if _UNFINISHED_FILE.fullmatch(path.name):
        return True
    try:
        actions = [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line]
    except (OSError, msgspec.DecodeError):
        return False
    return any(COMMIT_KEY in action.get("commitInfo", {}) for action in actions)
