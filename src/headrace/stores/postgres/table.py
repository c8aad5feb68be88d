"""The table of one view in PostgreSQL: column types, SQL statements, and the way in which a batch changes the table.

    text, enum            text
    int                   bigint
    float                 double precision, which supports NaN
    bool                  boolean
    decimal               numeric, with the declared digits
    time, date            timestamptz, date
    bytes                 bytea
    list, map, record     json, which preserves the text; jsonb would change it

Text columns of the key sort by bytes (``COLLATE "C"``). So the index of the key remains valid when the system's
collation rules change, and supports prefix searches. PostgreSQL does not support texts with a NUL character, or keys
that do not fit into an index page.

COPY loads a batch into a temporary table. From there, two statements delete and upsert rows. The server empties the
temporary table at the end of the transaction. If all keys are probably new, for example while a view of events is
built, COPY writes directly into the view's table, which is faster. If a key already exists, this attempt is rolled back
and the batch is loaded through the temporary table.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psycopg

from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Enum, Field, Scalar
from headrace.stores.errors import SchemaRefused
from headrace.stores.position import ViewSchema
from headrace.stores.rows import Row
from headrace.stores.writer import Changes, RowLimits

__all__ = [
    "KEY_BYTES_MAX",
    "PostgresTable",
    "clip_name",
    "column_definition",
    "column_type",
    "copy_lines",
    "quoted",
    "row_decoder",
    "row_limits",
    "select_expression",
]

KEY_BYTES_MAX = 2_600
_NAME_BYTES_MAX = 63
_ROW_BYTES_MAX = 8_000
_CHUNK_ROWS = 1_000
_DIRECT_COPIES_SKIPPED_MAX = 64
_TYPES = {
    "text": "text",
    "int": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "time": "timestamp with time zone",
    "date": "date",
    "bytes": "bytea",
}
_TIME_TEXT = """to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
_NEEDS_ESCAPE = re.compile(r"[\\\t\n\r]").search
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NULL = "\\N"
_DELETED = Field("gone", Scalar("bool"), False)

# Names and types


def quoted(name: str) -> str:
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
        raise SchemaRefused(
            f"{name[:80]!r} is not a valid name of a column or table in PostgreSQL",
            hint=f"use a name of 1 to {_NAME_BYTES_MAX} bytes without a NUL character",
        )
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def clip_name(name: str) -> str:
    """Return a name that the server does not truncate. A long name is cut and ends with a hash of the whole name."""
    if len(name) <= _NAME_BYTES_MAX:
        return name
    return f"{name[:54]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def column_type(field: Field) -> str:
    """Return the type as the server's catalog writes it."""
    match field.kind:
        case Scalar(name):
            return _TYPES[name]
        case Digits(precision, scale):
            return f"numeric({precision},{scale})"
        case Enum():
            return "text"
    return "json"


def column_definition(field: Field, key: Sequence[str]) -> str:
    by_bytes = ' COLLATE "C"' if field.name in key and column_type(field) == "text" else ""
    return f"{quoted(field.name)} {column_type(field)}{by_bytes}"


def _check_row_size(schema: ViewSchema) -> None:
    """Raise if a row does not fit into one page. The server stores long values elsewhere, but the row contains a
    pointer to each.
    """
    size = sum(
        9 if isinstance(field.kind, Scalar) and field.kind.name != "text" else 25 for field in schema.fields
    )
    if size > _ROW_BYTES_MAX:
        raise SchemaRefused(
            f"{len(schema.fields)} columns do not fit into a row of PostgreSQL",
            hint="split the view, or use another store",
        )


# Reading


def select_expression(field: Field) -> str:
    """Return SQL that selects the value in the form in which it was written."""
    name = quoted(field.name)
    match field.kind:
        case Scalar("time"):
            return _TIME_TEXT.format(name)
        case Scalar("date"):
            return f"to_char({name}, 'YYYY-MM-DD')"
        case Scalar() | Enum():
            return name
    return f"{name}::text"


def row_decoder(schema: ViewSchema) -> Callable[[tuple[Any, ...]], Row]:
    floats = [index for index, field in enumerate(schema.fields) if field.kind == Scalar("float")]

    def decode(values: tuple[Any, ...]) -> Row:
        if all(values[index] == values[index] for index in floats):
            return values
        return tuple("NaN" if value != value else value for value in values)

    return decode


# Writing, in the text format of COPY


def copy_lines(fields: Sequence[Field], rows: Iterable[Row]) -> bytes:
    """Encode the rows column by column, which is several times faster than value by value."""
    columns = [
        _copy_texts(field, values) for field, values in zip(fields, zip(*rows, strict=True), strict=True)
    ]
    return ("\n".join(map("\t".join, zip(*columns, strict=True))) + "\n").encode()


def _copy_texts(field: Field, values: tuple[Any, ...]) -> list[str]:
    match field.kind:
        case Scalar("int"):
            # This raises OverflowError if a number does not fit into bigint.
            array("q", [value for value in values if value is not None])
            return [_NULL if value is None else str(value) for value in values]
        case Scalar("float"):
            return [_NULL if value is None else str(value) for value in values]
        case Scalar("bool"):
            return [_NULL if value is None else "t" if value else "f" for value in values]
        case Scalar("bytes"):
            return [_NULL if value is None else f"\\\\x{value.hex()}" for value in values]
        case Digits() | Scalar("time" | "date"):
            return [_NULL if value is None else value for value in values]
    return [
        _NULL if value is None else value.translate(_ESCAPES) if _NEEDS_ESCAPE(value) else value
        for value in values
    ]


def row_limits(schema: ViewSchema) -> RowLimits:
    names = schema.names
    texts = [index for index, field in enumerate(schema.fields) if column_type(field) == "text"]
    key_indexes = schema.key_indexes
    # Each further column adds a length and alignment to the index entry.
    bytes_max = KEY_BYTES_MAX - 16 * (len(key_indexes) - 1)

    def check_row(row: Row) -> None:
        for index in texts:
            value = row[index]
            if value is not None and "\0" in value:  # type: ignore[operator]
                raise ValueDoesNotFit(
                    "the text has a NUL character, which PostgreSQL does not support", path=names[index]
                )
        check_key([row[index] for index in key_indexes])

    def check_key(values: Sequence[object]) -> None:
        size = 0
        for value, name in zip(values, schema.key, strict=True):
            if isinstance(value, str):
                if "\0" in value:
                    raise ValueDoesNotFit(
                        "the text has a NUL character, which PostgreSQL does not support", path=name
                    )
                size += len(value)
        if size > bytes_max // 4:
            size = sum(len(value.encode("utf-8", "replace")) for value in values if isinstance(value, str))
            if size > bytes_max:
                raise ValueDoesNotFit(
                    f"the key has {size} bytes, but PostgreSQL allows at most {bytes_max} bytes for these columns",
                    path=", ".join(schema.key),
                )

    return RowLimits(check_row, check_key)


class PostgresTable:
    """The SQL of one table, built once per schema. ``direct_rows_min`` is the smallest batch for which COPY tries to
    write directly into the table.
    """

    def __init__(
        self, schema_name: str, name: str, schema: ViewSchema, *, direct_rows_min: int = 100
    ) -> None:
        self._direct_rows_min = direct_rows_min
        self.name = name
        self.schema = schema
        self.full_name = f"{quoted(schema_name)}.{quoted(name)}"
        self.columns = ", ".join(map(quoted, schema.names))
        self.key = ", ".join(map(quoted, schema.key))
        self._key_indexes = schema.key_indexes
        stage = f"_headrace_stage_{hashlib.sha256(schema.to_json().encode()).hexdigest()[:16]}"
        self._stage = f"pg_temp.{quoted(stage)}"
        # Choose a name that no column of the view has.
        self._deleted = quoted(
            next(name for number in itertools.count() if (name := f"gone{number}") not in schema.names)
        )
        self._copies_to_skip = self._copies_skipped = 0
        """After a direct COPY failed, the next ``_copies_to_skip`` batches do not try one. ``_copies_skipped`` counts
        these batches.
        """

    @property
    def create(self) -> str:
        _check_row_size(self.schema)
        return f"CREATE TABLE {self.full_name} ({self._definitions}, PRIMARY KEY ({self.key}))"

    @property
    def create_stage(self) -> str:
        return (
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {self._stage} ({self._definitions}, {self._deleted} boolean)"
            " ON COMMIT DELETE ROWS"
        )

    @property
    def _definitions(self) -> str:
        return ", ".join(column_definition(field, self.schema.key) for field in self.schema.fields)

    # Writes

    def write(self, connection: psycopg.Connection[Any], changes: Changes) -> bool:
        """Write the changes. Return whether rows were inserted or updated."""
        deletes, upserts = changes.deletes, changes.upserts
        if not deletes and len(upserts) >= self._direct_rows_min and self._copy_directly(connection, upserts):
            return True
        fields = (*self.schema.fields, _DELETED)
        with connection.cursor().copy(
            f"COPY {self._stage} ({self.columns}, {self._deleted}) FROM STDIN"
        ) as copy:
            for rows in _chunks(self._staged(deletes, upserts)):
                copy.write(copy_lines(fields, rows))
        if deletes:
            # Do not prepare this statement: its best plan changes as the table grows.
            connection.execute(self._delete, prepare=False)
        if upserts:
            connection.execute(self._upsert, prepare=True)
        return bool(upserts)

    def _copy_directly(self, connection: psycopg.Connection[Any], rows: list[Row]) -> bool:
        """Write the rows directly into the table. If a key already exists, change nothing and return False."""
        if self._copies_skipped < self._copies_to_skip:
            self._copies_skipped += 1
            return False
        self._copies_skipped = 0
        try:
            with (
                connection.transaction(),
                connection.cursor().copy(f"COPY {self.full_name} ({self.columns}) FROM STDIN") as copy,
            ):
                for chunk in _chunks(iter(rows)):
                    copy.write(copy_lines(self.schema.fields, chunk))
        except psycopg.errors.UniqueViolation:
            self._copies_to_skip = min(_DIRECT_COPIES_SKIPPED_MAX, 2 * self._copies_to_skip + 1)
            return False
        self._copies_to_skip = 0
        return True

    def _staged(self, deletes: list[Row], upserts: list[Row]) -> Iterator[Row]:
        """Yield the rows for the temporary table."""
        empty: list[Any] = [None] * len(self.schema.fields)
        for key in deletes:
            for index, value in zip(self._key_indexes, key, strict=True):
                empty[index] = value
            yield (*empty, True)
        for row in upserts:
            yield (*row, False)

    @property
    def _delete(self) -> str:
        same_key = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self.schema.key)
        return f"DELETE FROM {self.full_name} t USING {self._stage} s WHERE s.{self._deleted} AND {same_key}"  # noqa: S608

    @property
    def _upsert(self) -> str:
        return (
            f"INSERT INTO {self.full_name} ({self.columns})"  # noqa: S608
            f" SELECT {self.columns} FROM {self._stage} WHERE NOT {self._deleted} {self.on_conflict}"
        )

    @property
    def on_conflict(self) -> str:
        sets = [
            f"{quoted(name)} = excluded.{quoted(name)}"
            for name in self.schema.names
            if name not in self.schema.key
        ]
        return f"ON CONFLICT ({self.key}) DO " + (f"UPDATE SET {', '.join(sets)}" if sets else "NOTHING")

    # Reads

    @property
    def select(self) -> str:
        return f"SELECT {', '.join(map(select_expression, self.schema.fields))} FROM {self.full_name}"  # noqa: S608

    def rows(self, connection: psycopg.Connection[Any], order: str = "") -> Iterator[Row]:
        """Yield the rows, fetched in portions by a server-side cursor. Call this in a transaction."""
        decode = row_decoder(self.schema)
        with connection.cursor("headrace_rows") as cursor:
            cursor.execute(f"{self.select} {order}")
            while chunk := cursor.fetchmany(_CHUNK_ROWS):
                yield from map(decode, chunk)

    def rows_by_key(self, connection: psycopg.Connection[Any]) -> Iterator[Row]:
        return self.rows(connection, f"ORDER BY {self.key}")


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
        yield chunk
