"""Writes one view in PostgreSQL: rows, position and owner in one transaction.

Every write locks the view's row in ``_headrace_owners`` for its transaction and compares the owner with its fence. If a
follower stalls inside its transaction, it continues to hold the lock. Another follower that claims the view waits for
the lock for a short time. Then it requests the server to end the session that holds the lock, but only if that session
belongs to a follower with the same role. The server rolls back the transaction, and the stalled follower fails when it
resumes. The server also ends a follower's session that is idle in a transaction for a minute.

``headrace.stores.postgres.swap`` describes how another part becomes the serving part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from headrace.stores.errors import PositionMoved, SchemaRefused, StoreBusy, StoreForeign
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.postgres.errors import translate_errors
from headrace.stores.postgres.layout import EMPTY_TABLE_FAULT, Catalog, table_name
from headrace.stores.postgres.session import FOLLOWER, MARKER, PostgresSession
from headrace.stores.postgres.swap import PartSwap
from headrace.stores.postgres.table import PostgresTable, row_limits
from headrace.stores.rows import Row
from headrace.stores.writer import (
    Changes,
    Fence,
    Owner,
    Part,
    RowLimits,
    StoreWriter,
    check_droppable,
    check_fence,
    check_kept,
    check_position,
    check_view_name,
    next_owner,
)

__all__ = ["PostgresWriter"]

Connection = psycopg.Connection[Any]


class PostgresWriter(StoreWriter):
    """``direct_rows_min`` is a parameter of ``PostgresTable``."""

    def __init__(self, url: str, schema_name: str, view: str, *, direct_rows_min: int = 100) -> None:
        check_view_name(view)
        self._direct_rows_min = direct_rows_min
        self.view = view
        self._session = PostgresSession(url, schema_name, FOLLOWER, is_stopping=lambda: self.is_stopping)
        self.where = self._session.where
        self._catalog = Catalog(self._session)
        self._ownership = _Ownership(self._session, self._catalog, view)
        self._tables: dict[Part, PostgresTable] = {}
        try:
            self._session.check_primary()
            if not self._catalog.exists():
                self._catalog.create()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._session.close()

    def limits(self, schema: ViewSchema) -> RowLimits | None:
        return row_limits(schema)

    def claim(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        self._tables.clear()
        return self._ownership.claim(name, now_ms, before)

    # State and rows

    def state(self, part: Part) -> ViewState | None:
        with self._session.reading() as connection:
            return self._catalog.state(connection, self.view, part)

    def _table(self, part: Part) -> PostgresTable:
        """Return the part's table, and create its temporary table. The result is cached, because the schema of a part
        never changes.
        """
        if part not in self._tables:
            state = self.state(part)
            if state is None:
                raise PositionMoved(f"view {self.view!r} has no {part} table in {self.where}")
            table = PostgresTable(
                self._session.schema_name,
                table_name(self.view, part),
                state.schema,
                direct_rows_min=self._direct_rows_min,
            )
            with translate_errors(self.where):
                self._session.connection.execute(table.create_stage)
            self._tables[part] = table
        return self._tables[part]

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        table = self._table(part)
        with self._session.reading() as connection:
            yield from table.rows_by_key(connection)

    # Writes

    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        table = PostgresTable(self._session.schema_name, table_name(self.view, Part.BUILDING), schema)
        with self._session.transaction() as connection:
            check_fence(self.view, fence, self._ownership.lock(connection), None)
            self._check_name_free(connection)
            self._drop(connection, Part.BUILDING)
            try:
                connection.execute(table.create)
            except (psycopg.errors.TooManyColumns, psycopg.errors.DuplicateColumn) as error:
                raise SchemaRefused(f"view {self.view!r}: PostgreSQL rejects its columns: {error}") from error
            state = ViewState(schema, position, self._ownership.rebuild_requests(connection), reason)
            self._catalog.insert(connection, self.view, Part.BUILDING, table.name, state)
        return state

    def _check_name_free(self, connection: Connection) -> None:
        """Raise if another program created the table with the view's name."""
        name = table_name(self.view, Part.SERVING)
        if self._catalog.is_ours(connection, self.view):
            return
        kind = self._catalog.relation_kind(connection, name)
        if kind is not None:
            raise StoreForeign(
                f"{self.where} has a {kind} {name!r} that no follower created",
                hint="rename this object or the view; the object was not changed",
            )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        table = self._table(part) if len(changes) else None
        with self._session.transaction() as connection:
            self._check(connection, part, before, fence)
            if after.generation != fence.generation:
                check_fence(self.view, fence, fence.owner, after.generation)
            filled = None if table is None else self._change(connection, part, table, changes)
            self._catalog.set_position(connection, self.view, part, after, filled)

    def _change(self, connection: Connection, part: Part, table: PostgresTable, changes: Changes) -> bool:
        """Write the changes. Return whether the table then has rows."""
        name, schema = table.name, table.schema
        if self._catalog.lost_all_rows(connection, self.view, part, name, schema):
            raise PositionMoved(
                f"another program changed view {self.view!r} in {self.where}: {EMPTY_TABLE_FAULT}",
                hint="the follower rebuilds the view; only the follower may change the table of a view",
            )
        return table.write(connection, changes) or not self._catalog.is_empty(connection, name, schema)

    def _check(self, connection: Connection, part: Part, before: Position | None, fence: Fence) -> None:
        """Raise unless the fence is current and the part is at the position ``before``."""
        owner = self._ownership.lock(connection)
        position = self._catalog.position(connection, self.view, part)
        check_fence(self.view, fence, owner, position.generation if position else None)
        check_position(self.view, self.where, before, position)

    def swap(self, fence: Fence, keep: bool = False) -> None:
        schema = self._table(Part.BUILDING).schema
        with self._session.transaction() as connection:
            self._check(connection, Part.BUILDING, None, fence)
            self._check_name_free(connection)
            self._swap(connection).serve_building(schema, keep)
        self._tables.clear()

    def swap_back(self, fence: Fence) -> None:
        with self._session.transaction() as connection:
            owner = self._ownership.lock(connection)
            position = self._catalog.position(connection, self.view, Part.KEPT)
            check_kept(self.view, self.where, fence, owner, position)
            kept = self._catalog.state(connection, self.view, Part.KEPT)
            if kept is None or kept.fault:
                raise PositionMoved(
                    f"another program changed the kept part of view {self.view!r} in {self.where}:"
                    f" {kept.fault if kept else 'its table was dropped or replaced'}",
                    hint="drop the kept part, and rebuild the view with the earlier flow",
                )
            self._check_name_free(connection)
            self._swap(connection).exchange(kept.schema)
        self._tables.clear()

    def _swap(self, connection: Connection) -> PartSwap:
        return PartSwap(connection, self._catalog, self._session.schema_name, self.view)

    def drop(self, part: Part, fence: Fence) -> None:
        check_droppable(self.view, part)
        with self._session.transaction() as connection:
            check_fence(self.view, fence, self._ownership.lock(connection), None)
            self._drop(connection, part)

    def _drop(self, connection: Connection, part: Part) -> None:
        self._swap(connection).drop(part)
        self._tables.pop(part, None)

    # Rebuild requests

    def request_rebuild(self) -> None:
        self._ownership.request_rebuild()

    def rebuild_requests(self) -> int:
        with translate_errors(self.where):
            return self._ownership.rebuild_requests(self._session.connection)


class _Ownership:
    """The view's row in ``_headrace_owners``."""

    def __init__(self, session: PostgresSession, catalog: Catalog, view: str) -> None:
        self._session = session
        self._owners = catalog.owners
        self._view = view

    def claim(self, name: str, now_ms: int, before: Owner | None) -> Owner:
        try:
            return self._claim(name, now_ms, before)
        except StoreBusy:
            if not self._end_session_with_lock():
                raise
        return self._claim(name, now_ms, before)

    def _claim(self, name: str, now_ms: int, before: Owner | None) -> Owner:
        with self._session.transaction() as connection:
            self._ensure_row(connection)
            owner = next_owner(self._view, name, self.lock(connection), before)
            connection.execute(
                f"UPDATE {self._owners} SET epoch = %s, owner = %s, taken_ms = %s WHERE view = %s",  # noqa: S608
                [owner.epoch, owner.name, now_ms, self._view],
            )
        return owner

    def _ensure_row(self, connection: Connection) -> None:
        connection.execute(
            f"INSERT INTO {self._owners} VALUES (%s, 0, '', 0, 0) ON CONFLICT DO NOTHING",  # noqa: S608
            [self._view],
        )

    def lock(self, connection: Connection) -> Owner | None:
        """Lock and return the owner. It cannot change before the end of the transaction."""
        row = connection.execute(
            f"SELECT epoch, owner, current_setting('{MARKER}', true) FROM {self._owners}"  # noqa: S608
            " WHERE view = %s FOR UPDATE",
            [self._view],
            prepare=True,
        ).fetchone()
        if row is None:
            return None
        epoch, owner, marker = row
        self._session.check_marker(marker)
        return Owner(epoch, owner) if epoch else None

    def _end_session_with_lock(self) -> bool:
        """End the follower's session that holds the lock. Return False if no such session exists.

        The system column xmax of a locked row is the id of the locking transaction.
        """
        with (
            translate_errors(self._session.where),
            contextlib.suppress(psycopg.errors.InsufficientPrivilege),
        ):
            row = self._session.connection.execute(
                "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"  # noqa: S608
                f" JOIN {self._owners} o ON o.xmax = l.transactionid WHERE o.view = %s AND l.granted"
                " AND l.locktype = 'transactionid' AND a.usename = current_user"
                # If the address sets an application name, all followers have that name.
                " AND a.application_name = current_setting('application_name')",
                [self._view],
            ).fetchall()
            return bool(row)
        return False

    def request_rebuild(self) -> None:
        with self._session.transaction() as connection:
            self._ensure_row(connection)
            connection.execute(
                f"UPDATE {self._owners} SET wish = wish + 1 WHERE view = %s",  # noqa: S608
                [self._view],
            )

    def rebuild_requests(self, connection: Connection) -> int:
        row = connection.execute(
            f"SELECT wish FROM {self._owners} WHERE view = %s",  # noqa: S608
            [self._view],
        ).fetchone()
        return int(row[0]) if row else 0
