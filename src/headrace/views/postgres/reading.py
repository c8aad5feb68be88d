"""Looking at a schema of views, and nothing else: the session can only read, and within a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import psycopg

from headrace.views.errors import QueryFailed
from headrace.views.position import Shape
from headrace.views.postgres.catalog import Catalog
from headrace.views.postgres.session import LOOKER, PostgresSession
from headrace.views.postgres.table import PostgresTable
from headrace.views.postgres.troubles import told_as
from headrace.views.reader import Known, Reader
from headrace.views.rows import Row
from headrace.views.store import Part

__all__ = ["PostgresReader"]


class PostgresReader(Reader):
    def __init__(self, url: str, schema: str) -> None:
        self._session = PostgresSession(url, schema, LOOKER, {"default_transaction_read_only": "on"})
        self._catalog = Catalog(self._session)
        self.where = self._session.where

    def is_made(self) -> bool:
        """Whether a follower has been here."""
        return self._catalog.is_there()

    def close(self) -> None:
        self._session.close()

    def known(self) -> list[Known]:
        with told_as(self.where):
            found = self._session.connection.execute(
                "SELECT view, part, topic, generation, batch, offsets::text, dead, stored_ms, reason, shape::text,"  # noqa: S608
                f" sources::text FROM {self._catalog.views} ORDER BY view, part DESC"
            ).fetchall()
        return [
            Known(
                *(view, Part(part), topic, generation, batch),
                msgspec.json.decode(offsets, type=dict[int, int]),
                *(dead, stored_ms, reason, Shape.told(shape), msgspec.json.decode(sources)),
            )
            for view, part, topic, generation, batch, offsets, dead, stored_ms, reason, shape, sources in found
        ]

    def count(self, view: str) -> int:
        with told_as(self.where):
            found = self._session.connection.execute(
                f"SELECT count(*) FROM {self._table(view).full}"  # noqa: S608
            ).fetchone()
        return int(found[0]) if found else 0

    @contextlib.contextmanager
    def reading(self, view: str, timeout_s: float) -> Iterator[tuple[list[str], Iterator[Row]]]:
        with self._session.reading() as connection:
            connection.execute(
                "SELECT set_config('statement_timeout', %s, true)", [str(max(1, int(timeout_s * 1_000)))]
            )
            table = self._table(view)
            yield list(table.shape.names), self._rows(table, timeout_s)

    def _rows(self, table: PostgresTable, timeout_s: float) -> Iterator[Row]:
        try:
            yield from table.rows(self._session.connection)
        except psycopg.errors.QueryCanceled as error:
            raise QueryFailed(
                f"the query was stopped after {timeout_s:g} s",
                hint="give it more with --timeout, or use psql",
            ) from error

    def _table(self, view: str) -> PostgresTable:
        found = self._session.connection.execute(
            f"SELECT name, shape::text FROM {self._catalog.views} WHERE view = %s AND part = %s",  # noqa: S608
            [view, Part.SERVING],
        ).fetchone()
        if found is None:
            raise QueryFailed(f"{self.where} serves no view {view!r}")
        name, shape = found
        return PostgresTable(self._session.schema, name, Shape.told(shape))
