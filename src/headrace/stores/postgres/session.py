"""One session with the server: its settings, its transactions, and its timeouts.

``synchronous_commit`` is off. A crash of the server can remove the last commits, but each commit only as a whole. The
follower then continues from an earlier position, whose rows match. Waiting for the disk would cost milliseconds per
batch without a benefit.

The server ends a session that is idle in a transaction for a minute. A statement waits at most two seconds for a lock.
So a stalled follower blocks others only for a short time, and others block the follower only for a short time.

If the server process stalls, the connection remains open, because the server's kernel still acknowledges packets.
Keepalives and server-side timeouts do not detect such a stall, and a long wait does not prove one: the swap of a large
view takes minutes. So after ``PROBE_AFTER_S`` seconds without data, the client probes the server with a second
connection. If that connection fails, the client abandons the statement. The server might have executed the statement
anyway. The follower then reads the position in the store to find out.

Settings, prepared statements and temporary tables belong to the session. They are lost if a pooler uses another session
for each transaction. Every transaction checks a marker setting to detect such a pooler.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready

from headrace.model.store import redact_address, resolve_address
from headrace.stores.errors import StoreGone, StoreUnusable
from headrace.stores.postgres.errors import pooler_error, translate_errors

__all__ = ["FOLLOWER", "MARKER", "READER", "PostgresSession", "WatchedConnection"]

FOLLOWER = "headrace follower"
READER = "headrace reader"
LOCK_WAIT_MS = 2_000
PROBE_AFTER_S = 10.0
MARKER = "headrace.session"
"""The name of the marker setting."""
_STOP_S = 2.0
"""Seconds to wait for a response when the follower must stop."""
_POLL_S = 0.1
_ADDRESS_DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_SETTINGS = {
    # These settings make the text form of values independent of the server's defaults.
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    # All names in our SQL are qualified. With this path, functions of users cannot replace built-in functions.
    "search_path": "pg_catalog, pg_temp",
    "client_min_messages": "warning",
    "jit": "off",
    "synchronous_commit": "off",
    "lock_timeout": str(LOCK_WAIT_MS),
    "idle_in_transaction_session_timeout": "60000",
    # With these settings, the server detects a dead client machine, even during a COPY.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}

T = TypeVar("T")


class WatchedConnection(psycopg.Connection[Any]):
    """Abandons a statement if the server does not respond and the probe fails, or if the caller must stop."""

    probe: Callable[[], None] | None = None
    """Raises if the server does not respond."""
    is_stopping: Callable[[], bool] | None = None
    _abandoned: psycopg.Error | None = None

    def wait(self, gen: PQGen[T], interval: float = _POLL_S, timeout: float | None = None) -> T:
        if self._abandoned is not None:
            raise self._abandoned
        try:
            return super().wait(self._watched(gen, interval), interval, timeout)
        except _Abandoned as error:
            # Close the connection, so that a late response cannot be read and the transaction ends.
            self._abandoned = error
            self.close()
            raise

    def _watched(self, gen: PQGen[T], interval: float) -> PQGen[T]:
        silent_s, probed_s = 0.0, 0.0
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                if ready == Ready.NONE:
                    silent_s += interval
                    if silent_s - probed_s >= PROBE_AFTER_S:
                        self._probe(silent_s)
                        probed_s = silent_s
                    if silent_s >= _STOP_S and self.is_stopping is not None and self.is_stopping():
                        raise _Abandoned(f"no response for {silent_s:.0f} s, and the follower must stop")
                else:
                    silent_s, probed_s = 0.0, 0.0
                awaited = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result

    def _probe(self, silent_s: float) -> None:
        if self.probe is None:
            return
        try:
            self.probe()
        except psycopg.OperationalError as error:
            raise _Abandoned(
                f"no response for {silent_s:.0f} s, and a new connection failed: {error}"
            ) from error


class _Abandoned(psycopg.OperationalError):
    pass


class PostgresSession:
    """Use it in one thread. ``name`` is the application name that the server shows. ``settings`` extend the
    defaults.
    """

    def __init__(
        self,
        url: str,
        schema_name: str,
        name: str,
        settings: Mapping[str, str] | None = None,
        is_stopping: Callable[[], bool] | None = None,
    ) -> None:
        if "%" in schema_name:
            raise StoreUnusable(
                f"{schema_name!r} cannot be the schema of a store", hint="use a name without a percent sign"
            )
        self.schema_name = schema_name
        self.where = f"{redact_address(url)}, schema {schema_name}"
        self._address = {**_ADDRESS_DEFAULTS, "application_name": name, **_parse_address(url)}
        self._marker = secrets.token_hex(8)
        with translate_errors(self.where):
            self.connection = WatchedConnection.connect(**self._address, autocommit=True)
            self.connection.probe = self._probe
            self.connection.is_stopping = is_stopping
            try:
                self._configure(_SETTINGS | {MARKER: self._marker} | dict(settings or {}))
            except BaseException:
                self.connection.close()
                raise

    @classmethod
    def for_reading(cls, url: str, schema_name: str) -> PostgresSession:
        return cls(url, schema_name, READER, {"default_transaction_read_only": "on"})

    def _probe(self) -> None:
        try:
            psycopg.connect(**self._address).close()
        except psycopg.OperationalError as error:
            # If the server rejects the connection, it is alive.
            if "FATAL" not in str(error):
                raise

    def check_marker(self, marker: str | None) -> None:
        """Raise if ``marker``, the value of the setting ``MARKER`` in a transaction, is not the value of this
        session.
        """
        if marker != self._marker:
            raise pooler_error(self.where, f"a transaction read {MARKER} = {marker!r}")

    def _configure(self, settings: Mapping[str, str]) -> None:
        calls = ", ".join(["set_config(%s, %s, false)"] * len(settings))
        values = [text for pair in settings.items() for text in pair]
        row = self.connection.execute(
            f"SELECT current_setting('server_encoding'), {calls}",
            values,
        ).fetchone()
        if row is None or row[0] != "UTF8":
            raise StoreUnusable(
                f"{self.where} has the encoding {row and row[0]}, which does not support every character",
                hint="create a database with ENCODING 'UTF8'",
            )

    def check_primary(self) -> None:
        with translate_errors(self.where):
            row = self.connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if row and row[0]:
            raise StoreGone(
                f"{self.where} is a read-only replica",
                hint="use the primary server; the follower continues when this server is promoted",
            )

    @contextlib.contextmanager
    def transaction(self, mode: str = "ISOLATION LEVEL READ COMMITTED") -> Iterator[psycopg.Connection[Any]]:
        """Run the block in a transaction: commit at its end, or roll back if it raises an error."""
        connection = self.connection
        with translate_errors(self.where):
            connection.execute(f"BEGIN {mode}")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def reading(self) -> contextlib.AbstractContextManager[psycopg.Connection[Any]]:
        """Return a read-only transaction. All its reads use the same snapshot of the database."""
        return self.transaction("ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def _roll_back(self) -> None:
        # If the connection is broken, the server has already ended the transaction.
        with contextlib.suppress(psycopg.Error):
            if self.connection.info.transaction_status != pq.TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()


def _parse_address(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(resolve_address(url)))
    except psycopg.Error:
        # Do not show libpq's message: it quotes the address, and any part of it can be the password.
        raise StoreUnusable(
            "the address of the store is not a valid PostgreSQL address",
            hint="use postgresql://user@host:5432/database; percent-encode special characters in a password",
        ) from None
