"""Writes one view in PostgreSQL: rows, position and owner in one transaction.

Every write locks the view's row in ``_headrace_owners`` for its transaction and compares the owner with its fence. If a
follower stalls inside its transaction, it continues to hold the lock. Another follower that claims the view waits for
the lock for a short time. Then it requests the server to end the session that holds the lock, but only if that session
belongs to a follower with the same role. The server rolls back the transaction, and the stalled follower fails when it
resumes. The server also ends a follower's session that is idle in a transaction for a minute.

A swap copies the rows that differ into the serving table, in one transaction. The serving table is not replaced, so
grants, indexes and SQL views of users remain. Readers see the old rows until the commit, and older transactions even
longer. Renaming the new table instead would have three problems: SQL views would still read the old table, grants would
be lost, and an older snapshot would see the new table half empty. If columns have changed, the swap alters them first.
Users must drop objects that depend on a removed column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from headrace.stores.errors import PositionMoved, SchemaRefused, StoreBusy, StoreForeign
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.postgres.errors import translate_errors
from headrace.stores.postgres.layout import EMPTY_TABLE_FAULT, Catalog
from headrace.stores.postgres.session import FOLLOWER, MARKER, PostgresSession
from headrace.stores.postgres.table import (
    PostgresTable,
    clip_name,
    column_definition,
    column_type,
    quoted,
    row_limits,
)
from headrace.stores.rows import Row
from headrace.stores.writer import (
    Changes,
    Fence,
    Owner,
    Part,
    RowLimits,
    StoreWriter,
    check_fence,
    check_position,
    check_view_name,
    is_older,
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
                self._table_name(part),
                state.schema,
                direct_rows_min=self._direct_rows_min,
            )
            with translate_errors(self.where):
                self._session.connection.execute(table.create_stage)
            self._tables[part] = table
        return self._tables[part]

    def _table_name(self, part: Part) -> str:
        return clip_name(self.view if part is Part.SERVING else f"_headrace_new_{self.view}")

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        table = self._table(part)
        with self._session.reading() as connection:
            yield from table.rows_by_key(connection)

    # Writes

    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        table = PostgresTable(self._session.schema_name, self._table_name(Part.BUILDING), schema)
        with self._session.transaction() as connection:
            owner = self._ownership.lock(connection)
            check_fence(self.view, fence, owner, None)
            serving = self._catalog.position(connection, self.view, Part.SERVING)
            if not self._catalog.is_ours(connection, self.view):
                self._check_name_free(connection)
            if serving is not None and is_older(position, serving):
                check_fence(self.view, fence, owner, serving.generation)
            self._drop_building(connection)
            try:
                connection.execute(table.create)
            except (psycopg.errors.TooManyColumns, psycopg.errors.DuplicateColumn) as error:
                raise SchemaRefused(f"view {self.view!r}: PostgreSQL rejects its columns: {error}") from error
            state = ViewState(schema, position, self._ownership.rebuild_requests(connection), reason)
            self._catalog.insert(connection, self.view, Part.BUILDING, table.name, state)
        return state

    def _check_name_free(self, connection: Connection) -> None:
        kind = self._catalog.relation_kind(connection, self._table_name(Part.SERVING))
        if kind is not None:
            raise StoreForeign(
                f"{self.where} has a {kind} {self._table_name(Part.SERVING)!r} that no follower created",
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

    def swap(self, fence: Fence) -> None:
        built = self._table(Part.BUILDING)
        serving = PostgresTable(self._session.schema_name, self._table_name(Part.SERVING), built.schema)
        with self._session.transaction() as connection:
            self._check(connection, Part.BUILDING, None, fence)
            name = self._catalog.table_name(connection, self.view, Part.SERVING)
            if not self._catalog.is_ours(connection, self.view):
                self._check_name_free(connection)
            if name is not None and self._catalog.columns(connection, name)[0]:
                _replace_rows(connection, self._catalog, serving, built)
            else:
                connection.execute(f"ALTER TABLE {built.full_name} RENAME TO {quoted(serving.name)}")
            self._catalog.serve_building(connection, self.view, serving.name)
        self._tables.clear()

    def drop_building(self, fence: Fence) -> None:
        with self._session.transaction() as connection:
            check_fence(self.view, fence, self._ownership.lock(connection), None)
            self._drop_building(connection)

    def _drop_building(self, connection: Connection) -> None:
        """Drop the building part. Drop its table even if it is not in the catalog, because its name is reserved."""
        name = quoted(self._table_name(Part.BUILDING))
        connection.execute(f"DROP TABLE IF EXISTS {quoted(self._session.schema_name)}.{name}")
        self._catalog.delete(connection, self.view, Part.BUILDING)
        self._tables.pop(Part.BUILDING, None)

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


# Swap


def _replace_rows(
    connection: Connection, catalog: Catalog, serving: PostgresTable, built: PostgresTable
) -> None:
    """Replace the rows of ``serving``, the existing table, by those of ``built``. Both objects have the new schema."""
    _alter_columns(connection, catalog, serving)
    # The server has no statistics of the new table yet and would choose a slow plan.
    connection.execute(f"ANALYZE {built.full_name}")
    same_key = " AND ".join(f"s.{quoted(name)} = b.{quoted(name)}" for name in serving.schema.key)
    first = quoted(serving.schema.key[0])
    connection.execute(
        f"DELETE FROM {serving.full_name} s WHERE NOT EXISTS (SELECT FROM {built.full_name} b WHERE {same_key})"  # noqa: S608
    )
    columns = ", ".join(f"b.{quoted(name)}" for name in serving.schema.names)
    differs = " OR ".join([f"s.{first} IS NULL", *_differences(serving)])
    connection.execute(
        f"INSERT INTO {serving.full_name} ({serving.columns}) SELECT {columns} FROM {built.full_name} b"  # noqa: S608
        f" LEFT JOIN {serving.full_name} s ON {same_key} WHERE {differs} {serving.on_conflict}"
    )
    connection.execute(f"DROP TABLE {built.full_name}")


def _differences(table: PostgresTable) -> list[str]:
    # The type json has no equality operator, so compare its text.
    casts = {field.name: "::text" if column_type(field) == "json" else "" for field in table.schema.fields}
    return [
        f"b.{quoted(name)}{cast} IS DISTINCT FROM s.{quoted(name)}{cast}"
        for name, cast in casts.items()
        if name not in table.schema.key
    ]


def _alter_columns(connection: Connection, catalog: Catalog, table: PostgresTable) -> None:
    """Drop and add columns. A column whose type has changed is dropped and added. If the key has changed, delete all
    rows first.
    """
    columns, key = catalog.columns(connection, table.name)
    fields_by_name = {field.name: field for field in table.schema.fields}
    dropped = [
        name
        for name, kind in columns
        if name not in fields_by_name or column_type(fields_by_name[name]) != kind
    ]
    unchanged = {name for name, _ in columns} - set(dropped)
    is_new_key = key != list(table.schema.key) or not unchanged.issuperset(key)
    if is_new_key:
        connection.execute(f"DELETE FROM {table.full_name}")  # noqa: S608
        for (name,) in connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'",
            [table.full_name],
        ).fetchall():
            connection.execute(f"ALTER TABLE {table.full_name} DROP CONSTRAINT {quoted(name)}")
    for name in dropped:
        connection.execute(f"ALTER TABLE {table.full_name} DROP COLUMN {quoted(name)}")
    for name, field in fields_by_name.items():
        if name not in unchanged:
            definition = column_definition(field, table.schema.key)
            connection.execute(f"ALTER TABLE {table.full_name} ADD COLUMN {definition}")
        elif is_new_key and name not in table.schema.key:
            connection.execute(f"ALTER TABLE {table.full_name} ALTER COLUMN {quoted(name)} DROP NOT NULL")
    if is_new_key:
        connection.execute(f"ALTER TABLE {table.full_name} ADD PRIMARY KEY ({table.key})")
