"""How what was built takes the place of what serves: row by row that differs, in one transaction.

The table that serves stays the same table, so grants, indexes and SQL views that users have made on it stay, and
whoever reads meanwhile sees the old rows until the commit, in a transaction that began before it even longer. A table
that is renamed into the place of another cannot give that: SQL views go on reading the old one, grants are gone, and a
snapshot from before finds the new table half empty.

Where the columns have changed, the table's are changed before: what depends on one that goes must be dropped by its
owner first.
"""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.views.postgres.catalog import Catalog
from headrace.views.postgres.columns import column_type, quoted
from headrace.views.postgres.table import PostgresTable, column_of

__all__ = ["replace"]


def replace(
    connection: psycopg.Connection[Any], catalog: Catalog, serving: PostgresTable, built: PostgresTable
) -> None:
    """``serving`` has the name of the table that is there, and the shape of what was built."""
    _adapt(connection, catalog, serving)
    # The server knows nothing of a table that was just filled, and would choose a slow way.
    connection.execute(f"ANALYZE {built.full}")
    same = " AND ".join(f"s.{quoted(one)} = b.{quoted(one)}" for one in serving.shape.key)
    first = quoted(serving.shape.key[0])
    connection.execute(
        f"DELETE FROM {serving.full} s WHERE NOT EXISTS (SELECT FROM {built.full} b WHERE {same})"  # noqa: S608
    )
    columns = ", ".join(f"b.{quoted(one)}" for one in serving.shape.names)
    differs = " OR ".join([f"s.{first} IS NULL", *_differing(serving)])
    connection.execute(
        f"INSERT INTO {serving.full} ({serving.columns}) SELECT {columns} FROM {built.full} b"  # noqa: S608
        f" LEFT JOIN {serving.full} s ON {same} WHERE {differs} {serving.on_conflict}"
    )
    connection.execute(f"DROP TABLE {built.full}")


def _differing(table: PostgresTable) -> list[str]:
    # There is no equality of json.
    told = {one.name: "::text" if column_type(one) == "json" else "" for one in table.shape.fields}
    return [
        f"b.{quoted(name)}{cast} IS DISTINCT FROM s.{quoted(name)}{cast}"
        for name, cast in told.items()
        if name not in table.shape.key
    ]


def _adapt(connection: psycopg.Connection[Any], catalog: Catalog, table: PostgresTable) -> None:
    """Columns that are gone, new, or of another type; and the key, for which the table is emptied."""
    found, key = catalog.columns(connection, table.name)
    wanted = {one.name: one for one in table.shape.fields}
    gone = [name for name, kind in found if name not in wanted or column_type(wanted[name]) != kind]
    kept = {name for name, _ in found} - set(gone)
    new_key = key != list(table.shape.key) or not kept.issuperset(key)
    if new_key:
        connection.execute(f"DELETE FROM {table.full}")  # noqa: S608
        for (name,) in connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", [table.full]
        ).fetchall():
            connection.execute(f"ALTER TABLE {table.full} DROP CONSTRAINT {quoted(name)}")
    for name in gone:
        connection.execute(f"ALTER TABLE {table.full} DROP COLUMN {quoted(name)}")
    for name, field in wanted.items():
        if name not in kept:
            connection.execute(f"ALTER TABLE {table.full} ADD COLUMN {column_of(field, table.shape.key)}")
        elif new_key and name not in table.shape.key:
            connection.execute(f"ALTER TABLE {table.full} ALTER COLUMN {quoted(name)} DROP NOT NULL")
    if new_key:
        connection.execute(f"ALTER TABLE {table.full} ADD PRIMARY KEY ({table.key})")
