"""Views of one schema, in one transaction that sees one state of the database.

Rows come by COPY as CSV, which Arrow reads by itself; a null is an empty field, an empty text has quotes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as csv

from headrace.model.kinds import Choice, Field, Plain
from headrace.serve.sql.column_types import arrow_schema
from headrace.serve.sql.messages import Source
from headrace.serve.sql.planning import Need
from headrace.serve.sql.reading import Read
from headrace.serve.sql.sqlite_reading import no_index
from headrace.views.errors import QueryTimedOut, StoreGone, StoreReplaced
from headrace.views.position import Standing
from headrace.views.postgres.catalog import Catalog
from headrace.views.postgres.columns import column_type, quoted
from headrace.views.postgres.session import LOOKER, PostgresSession
from headrace.views.sql_condition import SqlColumn, where_sql
from headrace.views.store import Part

__all__ = ["PostgresReading", "postgres_reading"]

_PIECE_BYTES = 4 << 20


class PostgresReading:
    def __init__(
        self, session: PostgresSession, connection: psycopg.Connection[Any], left: Callable[[], float]
    ) -> None:
        self._session = session
        self._catalog = Catalog(session)
        self._connection = connection
        self._left = left

    def standing(self, view: str) -> Standing | None:
        return self._catalog.standing(self._connection, view, Part.SERVING)

    def read(self, view: str, need: Need, words: str) -> Read:
        if words:
            raise no_index(view, self._session.where)
        standing = self.standing(view)
        name = self._catalog.name(self._connection, view, Part.SERVING)
        assert standing is not None, view
        assert name is not None, view
        fields = [standing.shape.fields[at] for at in need.columns]
        columns = {one.name: _column(one) for one in standing.shape.fields}
        where, values = where_sql(need.where, columns.__getitem__)
        table = f"{quoted(self._session.schema)}.{quoted(name)}"
        selected = ", ".join([*map(_selected, fields), "1"])
        statement = f"COPY (SELECT {selected} FROM {table} t WHERE ".replace("%", "%%")  # noqa: S608
        return Read(standing, self._batches(fields, f"{statement}{where}) TO STDOUT (FORMAT csv)", values))

    def _batches(self, fields: list[Field], statement: str, values: list[Any]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(fields)
        timeout = str(max(1, int(self._left() * 1_000)))
        self._connection.execute("SELECT set_config('statement_timeout', %s, true)", [timeout])
        piece = bytearray()
        # Rows of one empty column would be empty lines; so each has something behind.
        try:
            with self._connection.cursor().copy(statement, values) as copy:
                # Each is a whole row.
                for row in copy:
                    piece += row
                    if len(piece) >= _PIECE_BYTES:
                        yield from _read(schema, piece)
                        piece.clear()
                        self._left()
        except psycopg.errors.QueryCanceled as error:
            raise QueryTimedOut(int(timeout) / 1_000) from error
        if piece:
            yield from _read(schema, piece)


def _read(schema: pa.Schema, piece: bytearray) -> Iterator[pa.RecordBatch]:
    binary = [one.name for one in schema if pa.types.is_binary(one.type)]
    types = {one.name: pa.string() if one.name in binary else one.type for one in schema}
    table = csv.read_csv(
        io.BytesIO(bytes(piece)),
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
            pa.array(
                [None if one is None else bytes.fromhex(one[2:]) for one in column.to_pylist()], pa.binary()
            )
            if name in binary
            else column
            for name, column in zip(schema.names, batch.columns, strict=True)
        ]
        yield pa.record_batch(columns, schema=schema)


def _selected(field: Field) -> str:
    return f"t.{quoted(field.name)}"


def _column(field: Field) -> SqlColumn:
    name = f"t.{quoted(field.name)}".replace("%", "%%")
    text = isinstance(field.kind, Choice) or field.kind == Plain("text")
    return SqlColumn(
        name, f'{name} COLLATE "C"' if text else name, f"%s::{'text' if text else column_type(field)}"
    )


@contextlib.contextmanager
def postgres_reading(
    source: Source, left: Callable[[], float], kept: dict[str, Any]
) -> Iterator[PostgresReading]:
    """A session is kept; one that turns out to be gone is opened anew, before anything was read in it."""
    for attempt in (0, 1):
        session = kept.pop(source.store, None)
        fresh = session is None
        if fresh:
            session = PostgresSession(
                source.place, source.under, LOOKER, {"default_transaction_read_only": "on"}
            )
        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(session.reading())
                connection.execute("SELECT 1")
            except (StoreGone, StoreReplaced, psycopg.OperationalError):
                session.close()
                if fresh or attempt:
                    raise
                continue
            try:
                yield PostgresReading(session, connection, left)
            except BaseException:
                session.close()
                raise
        kept[source.store] = session
        return
