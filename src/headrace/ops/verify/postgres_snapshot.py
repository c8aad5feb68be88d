"""A snapshot of a view in a schema of PostgreSQL.

``_headrace_views`` has one row for each part of a view. The row of the part ``serving`` has the position, and the name
of the table with the rows. One read-only transaction reads both, so position and rows belong together. It first locks
the table, so that the table is not exchanged with the kept part between both reads. The follower can continue to write
meanwhile. COPY returns the rows, with values in the log's text form. The transaction ends before rows are derived.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from headrace.model.kinds import Digits, Enum, Field, Scalar
from headrace.model.store import redact_address, resolve_address
from headrace.ops.verify.comparison import Scratch
from headrace.ops.verify.errors import NotServed, StoreUnreadable
from headrace.ops.verify.plain_rows import Value, column_type
from headrace.ops.verify.snapshot import StoreSnapshot, changed_table, not_serving, snapshot_of

__all__ = ["read_postgres"]

T = TypeVar("T")

_DEFAULTS: dict[str, Any] = {"connect_timeout": 5, "application_name": "headrace verify"}
_SILENT_S = 30.0
_SETTINGS = (
    "SET search_path = pg_catalog",
    "SET lock_timeout = '10s'",
    "SET TimeZone = 'UTC'",
    "SET extra_float_digits = 1",
    "SET client_encoding = 'UTF8'",
    "SET bytea_output = 'hex'",
)
_CHUNK_ROWS = 10_000
_POSITION = (
    "topic",
    "topic_id",
    "generation",
    "batch",
    "offsets",
    "progress_id",
    "progress_offset",
    "sources",
)
_MAPS = ("offsets", "sources")
_TYPES = {
    "text": "text",
    "int": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "time": "timestamp with time zone",
    "date": "date",
    "bytes": "bytea",
}


def read_postgres(folder: Path, url: str, schema: str, view: str) -> tuple[StoreSnapshot, Scratch]:
    """Return the position, and the rows in a scratch file in ``folder``."""
    where = f"{redact_address(url)}, schema {schema}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_translate_errors(where))
        connection = stack.enter_context(contextlib.closing(_connect(url)))
        for statement in _SETTINGS:
            connection.execute(statement)
        lock = _lock(connection, schema, view)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if lock is not None:
            connection.execute(lock)
        snapshot, table = _read_state(connection, where, schema, view)
        _check_table(connection, where, schema, table, snapshot)
        scratch_stack = stack.enter_context(contextlib.ExitStack())
        scratch_file = Scratch.open(folder)
        scratch_stack.callback(scratch_file.close)
        columns = [(field.name, column_type(field)) for field in snapshot.fields]
        scratch = Scratch(scratch_file, columns, snapshot.key)
        for rows in _chunks(_rows(connection, schema, table, snapshot.fields)):
            scratch.put("found", rows)
        connection.execute("COMMIT")
        scratch_stack.pop_all()
    return snapshot, scratch


class _Connection(psycopg.Connection[Any]):
    """A connection with a timeout for a stalled server, which TCP and the server's own timeouts do not detect. Every
    statement here responds soon and then sends data continuously, so a pause means that the server has stalled.
    """

    _lost: psycopg.OperationalError | None = None

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            return super().wait(gen, interval, timeout or _SILENT_S)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:
                # Close the connection without sending anything, not even a cancel request.
                self._lost = error
                self.close()
            raise


def _connect(url: str) -> psycopg.Connection[Any]:
    try:
        address: dict[str, Any] = dict(conninfo_to_dict(resolve_address(url)))
    except psycopg.Error:
        # Do not use libpq's message: it quotes the address, which can contain the password.
        raise StoreUnreadable(
            "the address of the store is not a PostgreSQL address", hint="use postgresql://user@host/database"
        ) from None
    return _Connection.connect(**{**_DEFAULTS, **address}, autocommit=True)


def _has_catalog(connection: psycopg.Connection[Any], schema: str) -> bool:
    found = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = '_headrace_views'", [schema]
    ).fetchone()
    return found is not None


def _lock(connection: psycopg.Connection[Any], schema: str, view: str) -> str | None:
    """Return the statement that locks the serving table, or None if the table does not exist. The table always has the
    same name.
    """
    if not _has_catalog(connection, schema):
        return None
    found = connection.execute(
        f"SELECT name FROM {_quoted(schema)}._headrace_views WHERE view = %s AND part = 'serving'"  # noqa: S608
        " AND pg_catalog.to_regclass(pg_catalog.format('%%I.%%I', %s::text, name)) IS NOT NULL",
        [view, schema],
    ).fetchone()
    return f"LOCK TABLE {_quoted(schema)}.{_quoted(found[0])} IN ACCESS SHARE MODE" if found else None


def _read_state(
    connection: psycopg.Connection[Any], where: str, schema: str, view: str
) -> tuple[StoreSnapshot, str]:
    if not _has_catalog(connection, schema):
        raise NotServed(
            f"{where} contains no views",
            hint=f"no follower has built view {view} yet; start one with headrace run or headrace view follow",
        )
    names = ", ".join(f"{name}::text" if name in _MAPS else name for name in _POSITION)
    found = connection.execute(
        f"SELECT name, shape::text, {names} FROM {_quoted(schema)}._headrace_views"  # noqa: S608
        " WHERE view = %s AND part = 'serving'",
        [view],
    ).fetchone()
    if found is None:
        raise not_serving(view, where)
    table, view_schema, *values = found
    position = dict(zip(_POSITION, values, strict=True))
    for name in _MAPS:
        position[name] = msgspec.json.decode(position[name])
    return snapshot_of(where, view, position, view_schema), table


def _check_table(
    connection: psycopg.Connection[Any], where: str, schema: str, table: str, snapshot: StoreSnapshot
) -> None:
    found = connection.execute(
        "SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a"
        " WHERE a.attrelid = pg_catalog.to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped",
        [f"{_quoted(schema)}.{_quoted(table)}"],
    ).fetchall()
    keys = connection.execute(
        "SELECT a.attname::text FROM pg_catalog.pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k(at, number)"
        " JOIN pg_catalog.pg_attribute a ON a.attnum = k.at"
        " WHERE i.indisprimary AND i.indrelid = pg_catalog.to_regclass(%s) AND a.attrelid = i.indrelid"
        " ORDER BY k.number",
        [f"{_quoted(schema)}.{_quoted(table)}"],
    ).fetchall()
    expected = {field.name: _type(field) for field in snapshot.fields}
    if dict(found) != expected or [name for (name,) in keys] != list(snapshot.key):
        columns = ", ".join(f"{name} {kind}" for name, kind in found)
        raise changed_table(snapshot.view, table, where, columns, ", ".join(name for (name,) in keys))


def _type(field: Field) -> str:
    match field.kind:
        case Scalar(name):
            return _TYPES[name]
        case Digits(precision, scale):
            return f"numeric({precision},{scale})"
        case Enum():
            return "text"
    return "json"


# Rows


def _rows(
    connection: psycopg.Connection[Any], schema: str, table: str, fields: tuple[Field, ...]
) -> Iterator[tuple[Value, ...]]:
    columns = ", ".join(map(_select_expression, fields))
    decoders = [_decoder(field) for field in fields]
    query = f"COPY (SELECT {columns} FROM {_quoted(schema)}.{_quoted(table)}) TO STDOUT"  # noqa: S608
    with connection.cursor().copy(query) as copy:
        for found in copy.rows():
            yield tuple(
                None if text is None else decode(text) for decode, text in zip(decoders, found, strict=True)
            )


def _select_expression(field: Field) -> str:
    name = _quoted(field.name)
    match field.kind:
        case Scalar("time"):
            return f"""pg_catalog.to_char({name}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
        case Scalar("date"):
            return f"pg_catalog.to_char({name}, 'YYYY-MM-DD')"
        case Scalar("bytes"):
            return f"pg_catalog.encode({name}, 'hex')"
    return name


def _decoder(field: Field) -> Callable[[str], Value]:
    match field.kind:
        case Scalar("int"):
            return int
        case Scalar("float"):
            return lambda text: "NaN" if text == "NaN" else float(text)
        case Scalar("bool"):
            return lambda text: int(text == "t")
        case Scalar("bytes"):
            return bytes.fromhex
    return str


def _chunks(rows: Iterator[tuple[Value, ...]]) -> Iterator[list[tuple[Value, ...]]]:
    while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
        yield chunk


@contextlib.contextmanager
def _translate_errors(where: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        message = " ".join((error.diag.message_primary or str(error)).split())[:400]
        raise StoreUnreadable(
            f"cannot read {where}: {message} ({error.sqlstate or 'no code'})",
            hint="check that the server runs and that this role can read the schema",
        ) from error


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
