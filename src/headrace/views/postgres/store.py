"""A view in PostgreSQL, for its follower: rows, position and owner in one transaction of the server's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from headrace.views.changes import Changes
from headrace.views.errors import PositionMoved, ShapeRefused, StoreForeign
from headrace.views.names import expect_view_name
from headrace.views.position import Position, Shape, Standing
from headrace.views.postgres.catalog import EMPTIED, Catalog
from headrace.views.postgres.columns import quoted, refusals
from headrace.views.postgres.ownership import Ownership
from headrace.views.postgres.replacing import replace
from headrace.views.postgres.session import FOLLOWER, PostgresSession
from headrace.views.postgres.table import PostgresTable, clipped
from headrace.views.postgres.troubles import told_as
from headrace.views.rows import Row
from headrace.views.store import Fence, Owner, Part, Refusals, Store, refuse_stale

__all__ = ["PostgresStore"]

Connection = psycopg.Connection[Any]


class PostgresStore(Store):
    """``straight_from`` is for ``PostgresTable``."""

    def __init__(self, url: str, schema: str, view: str, *, straight_from: int = 100) -> None:
        expect_view_name(view)
        self._straight_from = straight_from
        self.view = view
        self._session = PostgresSession(url, schema, FOLLOWER, is_stopping=lambda: self.is_stopping)
        self.where = self._session.where
        self._catalog = Catalog(self._session)
        self._ownership = Ownership(self._session, self._catalog, view)
        self._tables: dict[Part, PostgresTable] = {}
        try:
            self._session.expect_primary()
            if not self._catalog.is_there():
                self._catalog.make()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._session.close()

    def refusals(self, shape: Shape) -> Refusals | None:
        return refusals(shape)

    # Who may write

    def take(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        return self._ownership.take(name, now_ms, before)

    # What there is

    def standing(self, part: Part) -> Standing | None:
        with self._session.reading() as connection:
            return self._catalog.standing(connection, self.view, part)

    def _table(self, part: Part) -> PostgresTable:
        """Kept, since its shape does not change while it has this place; with where its changes are copied to."""
        if part not in self._tables:
            found = self.standing(part)
            if found is None:
                raise PositionMoved(f"view {self.view!r} has no {part} table in {self.where}")
            table = PostgresTable(
                self._session.schema, self._name(part), found.shape, straight_from=self._straight_from
            )
            with told_as(self.where):
                self._session.connection.execute(table.create_stage)
            self._tables[part] = table
        return self._tables[part]

    def _name(self, part: Part) -> str:
        return clipped(self.view if part is Part.SERVING else f"_headrace_new_{self.view}")

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        table = self._table(part)
        with self._session.reading() as connection:
            yield from table.rows_by_key(connection)

    # What changes it

    def begin(self, shape: Shape, position: Position, reason: str, fence: Fence) -> Standing:
        table = PostgresTable(self._session.schema, self._name(Part.BUILDING), shape)
        with self._session.transaction() as connection:
            owner = self._ownership.locked(connection)
            refuse_stale(self.view, fence, owner, None)
            serving = self._catalog.position(connection, self.view, Part.SERVING)
            if not self._catalog.is_ours(connection, self.view):
                self._expect_name_free(connection)
            if serving is not None and _is_older(position, serving):
                refuse_stale(self.view, fence, owner, serving.generation)
            self._drop_building(connection)
            try:
                connection.execute(table.create)
            except (psycopg.errors.TooManyColumns, psycopg.errors.DuplicateColumn) as error:
                raise ShapeRefused(f"view {self.view!r}: PostgreSQL refuses its columns: {error}") from error
            standing = Standing(shape, position, self._ownership.wish(connection), reason)
            self._catalog.begin(connection, self.view, Part.BUILDING, table.name, standing)
        return standing

    def _expect_name_free(self, connection: Connection) -> None:
        found = self._catalog.kind_of(connection, self._name(Part.SERVING))
        if found is not None:
            raise StoreForeign(
                f"{self.where} has a {found} {self._name(Part.SERVING)!r} that no follower made",
                hint="rename it, or name the view otherwise; it was left as it is",
            )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        table = self._table(part) if len(changes) else None
        with self._session.transaction() as connection:
            self._expect(connection, part, before, fence)
            if after.generation != fence.generation:
                refuse_stale(self.view, fence, fence.owner, after.generation)
            filled = None if table is None else self._changed(connection, part, table, changes)
            self._catalog.move(connection, self.view, part, after, filled)

    def _changed(self, connection: Connection, part: Part, table: PostgresTable, changes: Changes) -> bool:
        """Whether there are rows now."""
        name, shape = table.name, table.shape
        if self._catalog.is_emptied(connection, self.view, part, name, shape):
            raise PositionMoved(
                f"view {self.view!r} in {self.where} is not as its follower left it: {EMPTIED}",
                hint="it is built again; a view's table is its follower's alone to change",
            )
        return table.change(connection, changes) or not self._catalog.is_empty(connection, name, shape)

    def _expect(self, connection: Connection, part: Part, before: Position | None, fence: Fence) -> Position:
        """The part is as its follower left it, and the follower is the one that may write."""
        owner = self._ownership.locked(connection)
        position = self._catalog.position(connection, self.view, part)
        refuse_stale(self.view, fence, owner, position.generation if position else None)
        if position is None or (before is not None and position != before):
            raise PositionMoved(
                f"view {self.view!r} in {self.where} is not where its follower left it",
                detail=f"left at {before}, found at {position}",
                hint="was the store restored from a backup? It goes on from where the store is",
            )
        return position

    def swap(self, fence: Fence) -> None:
        built = self._table(Part.BUILDING)
        serving = PostgresTable(self._session.schema, self._name(Part.SERVING), built.shape)
        with self._session.transaction() as connection:
            self._expect(connection, Part.BUILDING, None, fence)
            known = self._catalog.name(connection, self.view, Part.SERVING)
            if not self._catalog.is_ours(connection, self.view):
                self._expect_name_free(connection)
            if known is not None and self._catalog.columns(connection, known)[0]:
                replace(connection, self._catalog, serving, built)
            else:
                connection.execute(f"ALTER TABLE {built.full} RENAME TO {quoted(serving.name)}")
            self._catalog.serve(connection, self.view, serving.name)
        self._tables.clear()

    def drop_building(self, fence: Fence) -> None:
        with self._session.transaction() as connection:
            refuse_stale(self.view, fence, self._ownership.locked(connection), None)
            self._drop_building(connection)

    def _drop_building(self, connection: Connection) -> None:
        """Names like it are kept for us, whether it is known or not."""
        name = quoted(self._name(Part.BUILDING))
        connection.execute(f"DROP TABLE IF EXISTS {quoted(self._session.schema)}.{name}")
        self._catalog.forget(connection, self.view, Part.BUILDING)
        self._tables.pop(Part.BUILDING, None)

    # Wishes

    def ask_rebuild(self) -> None:
        self._ownership.ask_rebuild()

    def wish(self) -> int:
        with told_as(self.where):
            return self._ownership.wish(self._session.connection)


def _is_older(new: Position, serving: Position) -> bool:
    """An older generation of the same flow; those of another one do not compare."""
    return new.progress_id == serving.progress_id and new.generation < serving.generation
