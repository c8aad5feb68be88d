"""What the server's errors mean for a follower: what heals by itself, and what does not.

Everything is told by SQLSTATE but what goes wrong while a connection is made, of which libpq gives the words only.
Those few that do not heal are known by their words; all else is taken for a server that does not answer yet.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psycopg

from headrace.views.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreGone,
    StoreReplaced,
    StoreUnusable,
)

__all__ = ["pooled", "told_as"]

_REFUSED = re.compile(
    r"password|authentication|no pg_hba\.conf entry|role .* does not exist|permission denied|certificate",
    re.IGNORECASE,
)
_ROOM = "make room; it goes on by itself"
_UP = "it goes on by itself when the server answers"
_BUSY = {
    "40001": "the server gave the transaction up",
    "40003": "it is not known whether it was done",
    "40P01": "the server ended a deadlock",
    "53300": "the server has no connection left",
    "55P03": "somebody else holds a lock on it",
    "55006": "somebody else uses it",
    "57014": "the server cancelled the statement",
    "2BP01": "something else depends on a column that the view no longer has",
    # Among others what is found by who looks something up while another drops it.
    "XX000": "the server met with something unexpected",
}
_HINTS = {
    "53300": "end other programs' connections, or raise max_connections",
    "57014": "raise statement_timeout for this role, or lower views.max_rows; it is tried again",
    "XX000": "it is tried again; if it stays, see the server's log",
    "2BP01": "drop what the detail names, and make it again afterwards; the view serves as it was until then",
}


@contextlib.contextmanager
def told_as(where: str) -> Iterator[None]:
    """The server's errors, in our terms. ``where`` is the store, as it is shown."""
    try:
        yield
    except psycopg.Error as error:
        raise _translated(where, error) from error


def _translated(where: str, error: psycopg.Error) -> StoreError:
    state = error.sqlstate or ""
    told = f"{_line(error)}{f' ({state})' if state else ''}"
    detail = error.diag.message_detail or ""
    if not state:
        return _without_state(where, error, told)
    if state in _BUSY:
        hint = _HINTS.get(state, "end the other program's transaction; it is tried again")
        return StoreBusy(f"{where}: {_BUSY[state]}: {told}", detail=detail, hint=hint)
    match state[:2], state:
        case "53", _:
            return StoreFull(f"{where} cannot be written: {told}", detail=detail, hint=_ROOM)
        case "58", _:
            return StoreFull(
                f"{where} cannot use its files: {told}",
                detail=detail,
                hint="see the server's log and its disk; it is tried again",
            )
        case _, "25006":
            return StoreGone(
                f"{where} is a read-only copy, or set to read-only: {told}",
                hint="name the primary server; it goes on by itself when this one is promoted, or takes writes again",
            )
        case _, "26000" | "42P05":
            return pooled(where, told)
        case "08" | "57" | "25", _:
            return StoreGone(f"{where} has ended the connection: {told}", hint=_UP)
        case "3D", _:
            return StoreGone(f"{where} is not there: {told}", hint="make the database; it is tried again")
        case _, "42P01" | "42703" | "3F000" | "42P10":
            return StoreReplaced(
                f"{where} was wiped or changed while it was open: {told}",
                hint="the view goes on with what is there now, or is built again",
            )
        case ("28", _) | (_, "42501"):
            return StoreUnusable(
                f"{where} is not allowed to us: {told}",
                detail=detail,
                hint="the role needs USAGE and CREATE on the schema, and TEMPORARY on the database",
            )
        case "XX", _:
            return StoreDamaged(f"{where} is damaged: {told}", detail=detail, hint="see the server's log")
    return StoreError(f"{where}: {told}", detail=detail, hint=error.diag.message_hint or "")


def pooled(where: str, told: str) -> StoreUnusable:
    return StoreUnusable(
        f"{where} gives each transaction another session: {told}",
        hint="connect to the server itself, or to a pool that gives a session to one client (pool_mode = session)",
    )


def _without_state(where: str, error: psycopg.Error, told: str) -> StoreError:
    if isinstance(error, psycopg.OperationalError) and not _REFUSED.search(told):
        return StoreGone(f"{where} cannot be reached: {told}", hint=_UP)
    return StoreUnusable(
        f"{where} cannot be opened: {told}", hint="check the user, the password and the server's pg_hba.conf"
    )


def _line(error: psycopg.Error) -> str:
    """Its first lines, in one; libpq tells of each address that it tried."""
    return " ".join((error.diag.message_primary or str(error)).split())[:400]
