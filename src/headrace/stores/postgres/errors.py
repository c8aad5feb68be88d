"""Translates PostgreSQL's errors to store errors, with a hint about what to do.

SQLSTATE identifies every error except connection errors, for which libpq returns only text. A few of these texts mean
that a retry does not help. All other connection errors mean that the server does not respond yet.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psycopg

from headrace.stores.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreGone,
    StoreReplaced,
    StoreUnusable,
)

__all__ = ["pooler_error", "translate_errors"]

_LOGIN_REFUSED = re.compile(
    r"password|authentication|no pg_hba\.conf entry|role .* does not exist|permission denied|certificate",
    re.IGNORECASE,
)
_MESSAGE_CHARS_MAX = 400
_FULL_HINT = "free some space; the follower retries"
_DOWN_HINT = "the follower retries until the server responds"
_BUSY = {
    "40001": "the server aborted the transaction",
    "40003": "the outcome of the transaction is unknown",
    "40P01": "the server resolved a deadlock",
    "53300": "the server has no connection left",
    "55P03": "another program holds a lock",
    "55006": "another program uses the object",
    "57014": "the server cancelled the statement",
    "2BP01": "another object depends on a column that the view no longer has",
    # This also occurs if another session drops an object while this session reads it.
    "XX000": "internal error of the server",
}
_BUSY_HINTS = {
    "53300": "close connections of other programs, or raise max_connections",
    "57014": "raise statement_timeout for this role, or lower views.max_rows; the follower retries",
    "XX000": "the follower retries; if the error persists, check the server's log",
    "2BP01": "drop the object in the detail, and create it again afterwards; the view serves its old rows until then",
}


@contextlib.contextmanager
def translate_errors(where: str) -> Iterator[None]:
    """``where`` is the store's address for error messages."""
    try:
        yield
    except psycopg.Error as error:
        raise _translated(where, error) from error


def _translated(where: str, error: psycopg.Error) -> StoreError:
    state = error.sqlstate or ""
    message = f"{_one_line(error)}{f' ({state})' if state else ''}"
    detail = error.diag.message_detail or ""
    if not state:
        return _connect_error(where, error, message)
    if state in _BUSY:
        hint = _BUSY_HINTS.get(state, "end the other program's transaction; the follower retries")
        return StoreBusy(f"{where}: {_BUSY[state]}: {message}", detail=detail, hint=hint)
    match state[:2], state:
        case "53", _:
            return StoreFull(f"cannot write {where}: {message}", detail=detail, hint=_FULL_HINT)
        case "58", _:
            return StoreFull(
                f"the server of {where} cannot use its files: {message}",
                detail=detail,
                hint="check the server's log and its disk; the follower retries",
            )
        case _, "25006":
            return StoreGone(
                f"{where} is a read-only replica, or set to read-only: {message}",
                hint="use the primary server; the follower continues when this server accepts writes",
            )
        case _, "26000" | "42P05":
            return pooler_error(where, message)
        case "08" | "57" | "25", _:
            return StoreGone(f"{where} closed the connection: {message}", hint=_DOWN_HINT)
        case "3D", _:
            return StoreGone(
                f"{where} does not exist: {message}", hint="create the database; the follower retries"
            )
        case _, "42P01" | "42703" | "3F000" | "42P10":
            return StoreReplaced(
                f"{where} was wiped or changed while it was open: {message}",
                hint="the follower opens the store again and continues from its position, or rebuilds the view",
            )
        case ("28", _) | (_, "42501"):
            return StoreUnusable(
                f"no permission for {where}: {message}",
                detail=detail,
                hint="grant the role USAGE and CREATE on the schema, and TEMPORARY on the database",
            )
        case "XX", _:
            return StoreDamaged(
                f"{where} is damaged: {message}", detail=detail, hint="check the server's log"
            )
    return StoreError(f"{where}: {message}", detail=detail, hint=error.diag.message_hint or "")


def pooler_error(where: str, message: str) -> StoreUnusable:
    return StoreUnusable(
        f"{where} uses another server session for each transaction: {message}",
        hint="connect to the server directly, or to a pooler with one session per client (pool_mode = session)",
    )


def _connect_error(where: str, error: psycopg.Error, message: str) -> StoreError:
    if isinstance(error, psycopg.OperationalError) and not _LOGIN_REFUSED.search(message):
        return StoreGone(f"cannot reach {where}: {message}", hint=_DOWN_HINT)
    return StoreUnusable(
        f"cannot open {where}: {message}", hint="check the user, the password and the server's pg_hba.conf"
    )


def _one_line(error: psycopg.Error) -> str:
    """Join the lines of the message. libpq writes one line per address that it tried."""
    return " ".join((error.diag.message_primary or str(error)).split())[:_MESSAGE_CHARS_MAX]
