"""Arrow reads of a PostgreSQL schema, in one transaction with one snapshot.

COPY returns the rows as CSV, and Arrow parses the CSV. In the CSV an empty field is null, and an empty text has quotes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as csv

from headrace.model.kinds import Enum, Field, Scalar
from headrace.stores.arrow import ArrowRows, Deadline, TableScan, arrow_schema
from headrace.stores.errors import QueryTimedOut, StoreGone, StoreReplaced
from headrace.stores.position import ViewState
from headrace.stores.postgres.layout import Catalog
from headrace.stores.postgres.reader import set_statement_timeout
from headrace.stores.postgres.session import PostgresSession
from headrace.stores.postgres.table import column_type, quoted
from headrace.stores.reader import no_text_index
from headrace.stores.sql_condition import SqlColumn, where_sql
from headrace.stores.writer import Part

__all__ = ["PostgresArrowReader", "postgres_arrow_reader"]

_CHUNK_BYTES = 4 << 20


class PostgresArrowReader:
    def __init__(
        self, session: PostgresSession, connection: psycopg.Connection[Any], remaining_s: Deadline
    ) -> None:
        self._session = session
        self._catalog = Catalog(session)
        self._connection = connection
        self._remaining_s = remaining_s

    def state(self, view: str) -> ViewState | None:
        serving = self._serving(view)
        return None if serving is None else serving[1]

    def _serving(self, view: str) -> tuple[str, ViewState] | None:
        self._catalog.lock_serving(self._connection, view, self._remaining_s())
        return self._catalog.state_and_table(self._connection, view, Part.SERVING)

    def read(self, view: str, scan: TableScan, words: str) -> ArrowRows | None:
        if words:
            raise no_text_index(view, self._session.where)
        serving = self._serving(view)
        if serving is None:
            return None
        name, state = serving
        fields = [state.schema.fields[index] for index in scan.columns]
        columns = {field.name: _column(field) for field in state.schema.fields}
        where, values = where_sql(scan.where, columns.__getitem__)
        table = f"{quoted(self._session.schema_name)}.{quoted(name)}"
        # Add a constant column. Without it, a row with a single null would be an empty line.
        selected = ", ".join([*(f"t.{quoted(field.name)}" for field in fields), "1"])
        select = f"SELECT {selected} FROM {table} t WHERE ".replace("%", "%%")  # noqa: S608
        copy = f"COPY ({select}{where}) TO STDOUT (FORMAT csv)"
        return ArrowRows(state, self._batches(fields, copy, values))

    def _batches(self, fields: list[Field], statement: str, values: list[Any]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(fields)
        timeout_s = self._remaining_s()
        set_statement_timeout(self._connection, timeout_s)
        chunk = bytearray()
        try:
            with self._connection.cursor().copy(statement, values) as copy:
                for row in copy:
                    chunk += row
                    if len(chunk) >= _CHUNK_BYTES:
                        yield from _parse_csv(schema, chunk)
                        chunk.clear()
                        self._remaining_s()
        except psycopg.errors.QueryCanceled as error:
            raise QueryTimedOut(timeout_s) from error
        if chunk:
            yield from _parse_csv(schema, chunk)


def _parse_csv(schema: pa.Schema, chunk: bytearray) -> Iterator[pa.RecordBatch]:
    binary = [column.name for column in schema if pa.types.is_binary(column.type)]
    types = {column.name: pa.string() if column.name in binary else column.type for column in schema}
    table = csv.read_csv(
        io.BytesIO(bytes(chunk)),
        read_options=csv.ReadOptions(column_names=[*schema.names, "end"], use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types={**types, "end": pa.int64()},
            include_columns=schema.names,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
        ),
    )
    for batch in table.to_batches():
        columns = [
            _from_hex(column) if name in binary else column
            for name, column in zip(schema.names, batch.columns, strict=True)
        ]
        yield pa.record_batch(columns, schema=schema)


def _from_hex(column: pa.Array) -> pa.Array:
    r"""Convert to bytes. The server writes bytes as ``\x`` and hexadecimal digits."""
    values = [None if text is None else bytes.fromhex(text[2:]) for text in column.to_pylist()]
    return pa.array(values, pa.binary())


def _column(field: Field) -> SqlColumn:
    name = f"t.{quoted(field.name)}".replace("%", "%%")
    if isinstance(field.kind, Enum) or field.kind == Scalar("text"):
        return SqlColumn(name, f'{name} COLLATE "C"', "%s::text")
    return SqlColumn(name, name, f"%s::{column_type(field)}")


@contextlib.contextmanager
def postgres_arrow_reader(
    url: str, schema_name: str, remaining_s: Deadline, sessions: dict[tuple[str, str], Any]
) -> Iterator[PostgresArrowReader]:
    """Open a reader. Afterwards store the session in ``sessions`` for the next statement.

    If the connection of a stored session is lost, open a new session.
    """
    for attempt in (0, 1):
        session = sessions.pop((url, schema_name), None)
        is_fresh = session is None
        if session is None:
            session = PostgresSession.for_reading(url, schema_name)
        with contextlib.ExitStack() as stack:
            try:
                # The transaction takes its snapshot later, after ``lock_serving``.
                connection = stack.enter_context(session.reading())
            except (StoreGone, StoreReplaced, psycopg.OperationalError):
                session.close()
                if is_fresh or attempt:
                    raise
                continue
            try:
                yield PostgresArrowReader(session, connection, remaining_s)
            except BaseException:
                session.close()
                raise
        sessions[url, schema_name] = session
        return
