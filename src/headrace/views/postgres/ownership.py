"""Who may write a view: a row that every writer locks for the time of its transaction, and compares with its fence.

A follower that sleeps inside its transaction keeps the lock. Whoever takes the view over waits for it for a moment, and
then has the server end the session that holds it, if it is another follower's of the same role: its transaction is
undone, and it is refused when it wakes. Of another role, or of another program, it is left alone; the server itself
ends a follower's session that has been silent in a transaction for a minute.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg

from headrace.views.errors import StoreBusy
from headrace.views.postgres.catalog import Catalog
from headrace.views.postgres.session import MARK, PostgresSession
from headrace.views.postgres.troubles import told_as
from headrace.views.store import Owner, next_owner

__all__ = ["Ownership"]


class Ownership:
    def __init__(self, session: PostgresSession, catalog: Catalog, view: str) -> None:
        self._session = session
        self._owners = catalog.owners
        self._view = view

    def take(self, name: str, now_ms: int, before: Owner | None) -> Owner:
        try:
            return self._take(name, now_ms, before)
        except StoreBusy:
            if not self._end_holder():
                raise
        return self._take(name, now_ms, before)

    def _take(self, name: str, now_ms: int, before: Owner | None) -> Owner:
        with self._session.transaction() as connection:
            self._make_row(connection)
            owner = next_owner(self._view, name, self.locked(connection), before)
            connection.execute(
                f"UPDATE {self._owners} SET epoch = %s, owner = %s, taken_ms = %s WHERE view = %s",  # noqa: S608
                [owner.epoch, owner.name, now_ms, self._view],
            )
        return owner

    def _make_row(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(
            f"INSERT INTO {self._owners} VALUES (%s, 0, '', 0, 0) ON CONFLICT DO NOTHING",  # noqa: S608
            [self._view],
        )

    def locked(self, connection: psycopg.Connection[Any]) -> Owner | None:
        """The owner, who stays it until the end of the transaction."""
        found = connection.execute(
            f"SELECT epoch, owner, current_setting('{MARK}', true) FROM {self._owners}"  # noqa: S608
            " WHERE view = %s FOR UPDATE",
            [self._view],
            prepare=True,
        ).fetchone()
        if found is None:
            return None
        epoch, owner, mark = found
        self._session.expect_mark(mark)
        return Owner(epoch, owner) if epoch else None

    def _end_holder(self) -> bool:
        """Whether there was one. The transaction that has locked a row is noted in the row itself."""
        with told_as(self._session.where), contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            found = self._session.connection.execute(
                "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"  # noqa: S608
                f" JOIN {self._owners} o ON o.xmax = l.transactionid WHERE o.view = %s AND l.granted"
                " AND l.locktype = 'transactionid' AND a.usename = current_user"
                # Whatever the address calls it, it calls all followers.
                " AND a.application_name = current_setting('application_name')",
                [self._view],
            ).fetchall()
            return bool(found)
        return False

    # Wishes

    def ask_rebuild(self) -> None:
        with self._session.transaction() as connection:
            self._make_row(connection)
            connection.execute(
                f"UPDATE {self._owners} SET wish = wish + 1 WHERE view = %s",  # noqa: S608
                [self._view],
            )

    def wish(self, connection: psycopg.Connection[Any]) -> int:
        found = connection.execute(
            f"SELECT wish FROM {self._owners} WHERE view = %s",  # noqa: S608
            [self._view],
        ).fetchone()
        return int(found[0]) if found else 0
