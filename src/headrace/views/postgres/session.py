"""One connection to the server, its settings, and transactions on it.

Commits are not waited for (``synchronous_commit`` is off): after a crash of the server the last ones may be missing,
whole ones, and a follower then finds an earlier position with the rows of that position. So waiting would cost
milliseconds per batch and protect nothing.

A session that is silent in a transaction is ended by the server after a minute, and a lock is waited for two seconds,
so nobody is blocked for ever by a follower that sleeps, nor a follower by somebody else, nor by a server that sleeps
(``patience``).

Settings, prepared statements and temporary tables are the session's. A pooler that gives each transaction another
session takes them away, and is found out by a mark that every transaction must find.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from headrace.model.address import resolved, shown
from headrace.views.errors import StoreGone, StoreUnusable
from headrace.views.postgres.patience import PatientConnection
from headrace.views.postgres.troubles import pooled, told_as

__all__ = ["FOLLOWER", "LOOKER", "MARK", "PostgresSession"]

FOLLOWER = "headrace follower"
LOOKER = "headrace reader"
LOCK_WAIT_MS = 2_000
MARK = "headrace.session"
"""A setting that nobody else makes."""
_DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_SETTINGS = {
    # Values are read and written in one form, whatever the server's owner prefers.
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    # All names are given in full; nobody's functions come in between.
    "search_path": "pg_catalog, pg_temp",
    "client_min_messages": "warning",
    "jit": "off",
    "synchronous_commit": "off",
    "lock_timeout": str(LOCK_WAIT_MS),
    "idle_in_transaction_session_timeout": "60000",
    # Of the server's side: of a machine that is gone, also in the middle of a COPY.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


class PostgresSession:
    """For one thread. ``name`` is what the server shows of it; ``more`` are settings of its own; ``is_stopping`` says
    whether its user is to end.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        name: str,
        more: Mapping[str, str] | None = None,
        is_stopping: Callable[[], bool] | None = None,
    ) -> None:
        if "%" in schema:
            raise StoreUnusable(f"{schema!r} cannot be the schema of a store", hint="name one without a %")
        self.schema = schema
        self.where = f"{shown(url)}, schema {schema}"
        self._address = {**_DEFAULTS, "application_name": name, **_address(url)}
        self._mark = secrets.token_hex(8)
        with told_as(self.where):
            self.connection = PatientConnection.connect(**self._address, autocommit=True)
            self.connection.look = self._expect_answer
            self.connection.is_stopping = is_stopping
            try:
                self._settle(_SETTINGS | {MARK: self._mark} | dict(more or {}))
            except BaseException:
                self.connection.close()
                raise

    def _expect_answer(self) -> None:
        """By another connection."""
        try:
            psycopg.connect(**self._address).close()
        except psycopg.OperationalError as error:
            # Who refuses answers.
            if "FATAL" not in str(error):
                raise

    def expect_mark(self, found: str | None) -> None:
        """``found`` is what the setting ``MARK`` is, in a transaction."""
        if found != self._mark:
            raise pooled(self.where, f"a transaction has found {MARK} to be {found!r}")

    def _settle(self, settings: Mapping[str, str]) -> None:
        sets = ", ".join(["set_config(%s, %s, false)"] * len(settings))
        values = [text for pair in settings.items() for text in pair]
        found = self.connection.execute(
            f"SELECT current_setting('server_encoding'), {sets}",
            values,
        ).fetchone()
        if found is None or found[0] != "UTF8":
            raise StoreUnusable(
                f"{self.where} has the encoding {found and found[0]}, which does not hold every text",
                hint="make a database with ENCODING 'UTF8'",
            )

    def expect_primary(self) -> None:
        with told_as(self.where):
            found = self.connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if found and found[0]:
            raise StoreGone(
                f"{self.where} is a read-only copy of another server",
                hint="name the primary server; it goes on by itself when this one is promoted",
            )

    @contextlib.contextmanager
    def transaction(self, how: str = "ISOLATION LEVEL READ COMMITTED") -> Iterator[psycopg.Connection[Any]]:
        """All that is written within, or nothing."""
        connection = self.connection
        with told_as(self.where):
            connection.execute(f"BEGIN {how}")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def reading(self) -> contextlib.AbstractContextManager[psycopg.Connection[Any]]:
        """One state of the database for all that is read within."""
        return self.transaction("ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def _roll_back(self) -> None:
        # A connection that is broken has no transaction any more.
        with contextlib.suppress(psycopg.Error):
            if self.connection.info.transaction_status != pq.TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()


def _address(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(resolved(url)))
    except psycopg.Error:
        # Nothing of it is shown, nor what libpq says, which quotes it: who knows where the password is.
        raise StoreUnusable(
            "the address of a store is not one of PostgreSQL",
            hint="as in postgresql://user@host:5432/database; special characters in a password are %-encoded",
        ) from None
