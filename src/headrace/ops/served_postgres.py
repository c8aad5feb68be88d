"""What a schema of a PostgreSQL database serves of a view.

The database is read as it is documented: ``_headrace_views`` has a row per view and part, of which the part ``serving``
counts, with the name of the table that holds the rows. One read-only transaction of one snapshot covers both, so
position and rows belong together, and the follower goes on meanwhile. The rows come by COPY, in the texts of the log
where the type has more than one; the transaction is over before anything is derived.
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

from headrace.model.address import resolved, shown
from headrace.model.kinds import Choice, Digits, Field, Plain
from headrace.ops.errors import NotServed, StoreUnreadable
from headrace.ops.plain_rows import Value, column_type
from headrace.ops.scratch import Scratch
from headrace.ops.served import Served, served_of

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
_AT_ONCE = 10_000
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


def read_postgres(folder: Path, url: str, schema: str, view: str) -> tuple[Served, Scratch]:
    """The position, and the rows in a scratch file in ``folder``."""
    where = f"{shown(url)}, schema {schema}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_told(where))
        connection = stack.enter_context(contextlib.closing(_connect(url)))
        for statement in _SETTINGS:
            connection.execute(statement)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        served, table = _standing(connection, where, schema, view)
        _expect_table(connection, where, schema, table, served)
        opened = stack.enter_context(contextlib.ExitStack())
        scratch_file = Scratch.open(folder)
        opened.callback(scratch_file.close)
        columns = [(one.name, column_type(one)) for one in served.fields]
        scratch = Scratch(scratch_file, columns, served.key)
        for rows in _pieces(_rows(connection, schema, table, served.fields)):
            scratch.put("found", rows)
        connection.execute("COMMIT")
        opened.pop_all()
    return served, scratch


class _Connection(psycopg.Connection[Any]):
    """Nothing that is asked here takes long to begin, and then something comes all the time: a server that is silent
    sleeps, and neither its time-outs nor its kernel would end that.
    """

    _lost: psycopg.OperationalError | None = None

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            return super().wait(gen, interval, timeout or _SILENT_S)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:
                # Nothing more is asked of it, not even to leave off.
                self._lost = error
                self.close()
            raise


def _connect(url: str) -> psycopg.Connection[Any]:
    try:
        address: dict[str, Any] = dict(conninfo_to_dict(resolved(url)))
    except psycopg.Error:
        # Nothing of it is shown, nor what libpq says, which quotes it: who knows where the password is.
        raise StoreUnreadable(
            "the address of a store is not one of PostgreSQL", hint="as in postgresql://user@host/database"
        ) from None
    return _Connection.connect(**{**_DEFAULTS, **address}, autocommit=True)


def _standing(connection: psycopg.Connection[Any], where: str, schema: str, view: str) -> tuple[Served, str]:
    known = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = '_headrace_views'", [schema]
    ).fetchone()
    if known is None:
        raise NotServed(
            f"{where} holds no views",
            hint=f"nothing follows view {view} yet: headrace run, or headrace view follow",
        )
    names = ", ".join(f"{one}::text" if one in _MAPS else one for one in _POSITION)
    found = connection.execute(
        f"SELECT name, shape::text, {names} FROM {_quoted(schema)}._headrace_views"  # noqa: S608
        " WHERE view = %s AND part = 'serving'",
        [view],
    ).fetchone()
    if found is None:
        raise NotServed(
            f"view {view} does not serve in {where} yet", hint="it is being built, or nothing follows it"
        )
    table, shape, *position = found
    told = dict(zip(_POSITION, position, strict=True))
    for name in _MAPS:
        told[name] = msgspec.json.decode(told[name])
    return served_of(where, view, told, shape), table


def _expect_table(
    connection: psycopg.Connection[Any], where: str, schema: str, table: str, served: Served
) -> None:
    """A table that somebody has changed is not read: it may hold a key twice, or columns of another meaning."""
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
    wanted = {one.name: _type(one) for one in served.fields}
    if dict(found) != wanted or [name for (name,) in keys] != list(served.key):
        told = ", ".join(f"{name} {kind}" for name, kind in found)
        raise StoreUnreadable(
            f"table {table} of view {served.view} in {where} is not as its follower made it",
            detail=f"it has the columns {told or '(none)'} and the key {', '.join(n for (n,) in keys) or '(none)'}",
            hint="headrace view rebuild makes it anew; rather than changing it, make a view of your own on top",
        )


def _type(field: Field) -> str:
    match field.kind:
        case Plain(name):
            return _TYPES[name]
        case Digits(precision, scale):
            return f"numeric({precision},{scale})"
        case Choice():
            return "text"
    return "json"


# Rows


def _rows(
    connection: psycopg.Connection[Any], schema: str, table: str, fields: tuple[Field, ...]
) -> Iterator[tuple[Value, ...]]:
    columns = ", ".join(map(_selected, fields))
    made = [_made(one) for one in fields]
    query = f"COPY (SELECT {columns} FROM {_quoted(schema)}.{_quoted(table)}) TO STDOUT"  # noqa: S608
    with connection.cursor().copy(query) as copy:
        for found in copy.rows():
            yield tuple(None if text is None else make(text) for make, text in zip(made, found, strict=True))


def _selected(field: Field) -> str:
    name = _quoted(field.name)
    match field.kind:
        case Plain("time"):
            return f"""pg_catalog.to_char({name}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
        case Plain("date"):
            return f"pg_catalog.to_char({name}, 'YYYY-MM-DD')"
        case Plain("bytes"):
            return f"pg_catalog.encode({name}, 'hex')"
    return name


def _made(field: Field) -> Callable[[str], Value]:
    match field.kind:
        case Plain("int"):
            return int
        case Plain("float"):
            return lambda text: "NaN" if text == "NaN" else float(text)
        case Plain("bool"):
            return lambda text: int(text == "t")
        case Plain("bytes"):
            return bytes.fromhex
    return str


def _pieces(rows: Iterator[tuple[Value, ...]]) -> Iterator[list[tuple[Value, ...]]]:
    while some := list(itertools.islice(rows, _AT_ONCE)):
        yield some


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        said = " ".join((error.diag.message_primary or str(error)).split())[:400]
        raise StoreUnreadable(
            f"{where} cannot be read: {said} ({error.sqlstate or 'no code'})",
            hint="is the server up, and may this role read the schema?",
        ) from error


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
