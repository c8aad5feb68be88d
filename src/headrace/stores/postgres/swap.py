"""Replaces the serving part of a view in PostgreSQL, in the writer's transaction.

**A swap copies the rows that differ** into the serving table. The serving table is not replaced, so grants, indexes
and SQL views of users remain. Readers see the old rows until the commit, and older transactions even longer. Renaming
the new table instead would have three problems: SQL views would still read the old table, grants would be lost, and an
older snapshot would see the new table half empty. If columns have changed, the swap alters them first. Users must drop
objects that depend on a removed column. If the swap keeps the old serving part, it first copies the serving table with
its indexes.

**Switching back renames the two tables**, so the time does not depend on the number of rows. The kept table first gets
the grants of the serving table. A rename waits for transactions that have read one of the tables. So a reader that
locks the table before its transaction takes its snapshot (``Catalog.lock_serving``) reads the rows that match the
position. If such a transaction takes too long, or if SQL views or other objects depend on the table itself, switching
back copies the rows that differ, as a swap does.
"""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.stores.position import ViewSchema
from headrace.stores.postgres.layout import MOVING, Catalog, table_name
from headrace.stores.postgres.table import PostgresTable, column_definition, column_type, quoted
from headrace.stores.writer import Part

__all__ = ["PartSwap"]

Connection = psycopg.Connection[Any]

_LOCK_WAIT_MS = 1_500
"""Readers that come later wait for the rename, so it must not wait for long. After ``deadlock_timeout``, a second by
default, the server cancels an autovacuum that holds the lock.
"""
# True if an object would still refer to this table after a rename. Indexes, defaults and statistics are copied with the
# table.
_HAS_DEPENDENTS = """
SELECT c.relrowsecurity OR EXISTS (
    SELECT FROM pg_depend d
    LEFT JOIN pg_class r ON d.classid = 'pg_class'::regclass AND r.oid = d.objid
    LEFT JOIN pg_constraint n ON d.classid = 'pg_constraint'::regclass AND n.oid = d.objid
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
    AND d.classid NOT IN ('pg_type'::regclass, 'pg_attrdef'::regclass, 'pg_statistic_ext'::regclass)
    AND coalesce(r.relkind NOT IN ('i', 't', 'S'), n.contype = 'f' OR n.conrelid <> c.oid, true)
) OR EXISTS (
    SELECT FROM pg_depend d
    WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid = c.reltype AND d.deptype = 'n'
) FROM pg_class c WHERE c.oid = %s::regclass
"""
_ROLE = "CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END"
# The privileges on a table and on its columns. The owner has all privileges anyway.
_PRIVILEGES = """
SELECT a.grantee, a.privilege_type, a.is_grantable, NULL::name AS attname
FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = %s::regclass AND a.grantee <> c.relowner
UNION ALL
SELECT a.grantee, a.privilege_type, a.is_grantable, t.attname
FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid AND NOT t.attisdropped, aclexplode(t.attacl) a
WHERE c.oid = %s::regclass AND a.grantee <> c.relowner
"""
_REVOKES = f"""
SELECT DISTINCT format('REVOKE ALL ON TABLE %%s FROM %%s CASCADE', %s::text, {_ROLE}) FROM ({_PRIVILEGES}) p
"""  # noqa: S608
_GRANTS = f"""
SELECT format('GRANT %%s%%s ON TABLE %%s TO %%s%%s', privilege_type, ' (' || quote_ident(attname) || ')', %s::text,
    {_ROLE}, CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END)
FROM ({_PRIVILEGES}) p WHERE attname IS NULL OR attname = ANY(%s)
"""  # noqa: S608


class PartSwap:
    """Use it in one transaction, after the checks of the fence."""

    def __init__(self, connection: Connection, catalog: Catalog, schema_name: str, view: str) -> None:
        self._connection = connection
        self._catalog = catalog
        self._schema_name = schema_name
        self._view = view

    def serve_building(self, schema: ViewSchema, keep: bool) -> None:
        """Make the building part, which has this schema, the serving part."""
        serving = self._serving() if keep else None
        if serving is not None:
            self.drop(Part.KEPT)
            self._copy_serving(serving)
        self._serve(Part.BUILDING, schema)

    def exchange(self, kept: ViewSchema) -> None:
        """Exchange the serving part and the kept part, which has this schema."""
        self._catalog.fulfil_requests(self._connection, self._view)
        serving = self._serving()
        if serving is None:
            self._serve(Part.KEPT, kept)
        elif self._can_rename():
            self._copy_grants(kept)
            self._rename(Part.SERVING, MOVING)
            self._rename(Part.KEPT, Part.SERVING)
            self._rename(MOVING, Part.KEPT)
        else:
            self._rename(Part.KEPT, MOVING)
            self._copy_serving(serving)
            self._serve(MOVING, kept)

    def drop(self, part: str) -> None:
        """Drop the part. Drop its table even if it is not in the catalog, because its name is reserved."""
        self._connection.execute(f"DROP TABLE IF EXISTS {self._full_name(part)}")
        self._catalog.delete(self._connection, self._view, part)

    def _full_name(self, part: str) -> str:
        return f"{quoted(self._schema_name)}.{quoted(table_name(self._view, part))}"

    def _serving(self) -> ViewSchema | None:
        """Return the schema of the serving part, or None if it does not exist or has a fault."""
        serving = self._catalog.state(self._connection, self._view, Part.SERVING)
        return None if serving is None or serving.fault else serving.schema

    def _copy_serving(self, schema: ViewSchema) -> None:
        """Create the kept part as a copy of the serving part."""
        serving, kept = self._full_name(Part.SERVING), self._full_name(Part.KEPT)
        columns = ", ".join(map(quoted, schema.names))
        self._connection.execute(f"CREATE TABLE {kept} (LIKE {serving} INCLUDING ALL)")
        self._connection.execute(f"INSERT INTO {kept} ({columns}) SELECT {columns} FROM {serving}")  # noqa: S608
        self._connection.execute(f"ANALYZE {kept}")
        self._catalog.copy(
            self._connection, self._view, Part.SERVING, Part.KEPT, table_name(self._view, Part.KEPT)
        )

    def _serve(self, source: str, schema: ViewSchema) -> None:
        """Make the part ``source`` the serving part. Delete the old serving part."""
        name = self._catalog.table_name(self._connection, self._view, Part.SERVING)
        if name is None or not self._catalog.columns(self._connection, name)[0]:
            self._rename(source, Part.SERVING)
            return
        new = PostgresTable(self._schema_name, table_name(self._view, source), schema)
        serving = PostgresTable(self._schema_name, table_name(self._view, Part.SERVING), schema)
        _replace_rows(self._connection, self._catalog, serving, new)
        self._catalog.move(self._connection, self._view, source, Part.SERVING, serving.name)

    def _rename(self, source: str, target: str) -> None:
        name = table_name(self._view, target)
        self._connection.execute(f"ALTER TABLE {self._full_name(source)} RENAME TO {quoted(name)}")
        self._catalog.move(self._connection, self._view, source, target, name)

    def _can_rename(self) -> bool:
        """Lock both tables. Return False if they cannot be renamed."""
        serving = self._full_name(Part.SERVING)
        if self._connection.execute(_HAS_DEPENDENTS, [serving]).fetchone() != (False,):
            return False
        try:
            with self._connection.transaction():
                self._connection.execute(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
                self._connection.execute(
                    f"LOCK TABLE {serving}, {self._full_name(Part.KEPT)} IN ACCESS EXCLUSIVE MODE"
                )
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def _copy_grants(self, kept: ViewSchema) -> None:
        """Give the kept table the grants of the serving table, and no others."""
        source, target = self._full_name(Part.SERVING), self._full_name(Part.KEPT)
        revokes = self._connection.execute(_REVOKES, [target, target, target]).fetchall()
        grants = self._connection.execute(_GRANTS, [target, source, source, list(kept.names)]).fetchall()
        for (statement,) in [*revokes, *grants]:
            self._connection.execute(statement)


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
