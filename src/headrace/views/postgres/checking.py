"""Whether a follower could keep views in a schema: all that it would ask for, and nothing changed."""

from __future__ import annotations

import contextlib

from headrace.views.errors import StoreUnusable
from headrace.views.postgres.catalog import Catalog
from headrace.views.postgres.session import LOOKER, PostgresSession
from headrace.views.postgres.troubles import told_as

__all__ = ["check"]


def check(url: str, schema: str) -> bool:
    """Whether a follower has been here; raises what would stop one."""
    session = PostgresSession(url, schema, LOOKER, {"default_transaction_read_only": "on"})
    with contextlib.closing(session):
        session.expect_primary()
        with told_as(session.where):
            found = session.connection.execute(
                "SELECT current_user, has_database_privilege(current_database(), 'TEMPORARY'),"
                " has_database_privilege(current_database(), 'CREATE'), (SELECT"
                " has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE')"
                " FROM pg_namespace WHERE nspname = %s)",
                [schema],
            ).fetchone()
        assert found is not None
        role, temporary, may_make, may_write = found
        if not temporary or not (may_make if may_write is None else may_write):
            raise StoreUnusable(
                f"role {role} may not write in {session.where}",
                hint=f"GRANT USAGE, CREATE ON SCHEMA {schema}, and TEMPORARY on the database, to {role}",
            )
        return Catalog(session).is_there()
