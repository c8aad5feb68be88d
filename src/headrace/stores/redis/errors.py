"""Translates errors of Redis and of its client library to store errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from redis import exceptions

from headrace.stores.errors import StoreError, StoreForeign, StoreFull, StoreGone, StoreUnusable

__all__ = ["translate_errors"]

# Matches the error of a command inside a script, as Redis 6 reports it.
_IN_SCRIPT = re.compile(r"@user_script: ?[0-9]+: -?([A-Z]+) ").search
# Matches the reason for a discarded EXEC, if the error occurred after the last queued command.
_AT_EXEC = re.compile(r"discarded because of: -?([A-Z]+) ").search
_RETRIABLE = (
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "BUSY",
    "UNBLOCKED",
    "READONLY",
)
_LOGIN = ("WRONGPASS", "NOAUTH", "NOPERM")
_OTHER_NODE = ("MOVED", "ASK", "CROSSSLOT")


@contextlib.contextmanager
def translate_errors(where: str) -> Iterator[None]:
    try:
        yield
    except exceptions.RedisError as error:
        raise _translated(where, error) from error


def _translated(where: str, error: exceptions.RedisError) -> StoreError:
    # The client library removes the code word from errors that have their own class.
    text = str(error)
    inner = _IN_SCRIPT(text) or _AT_EXEC(text)
    code = inner[1] if inner else text.partition(" ")[0]
    match error:
        case (
            exceptions.AuthenticationError()
            | exceptions.AuthorizationError()
            | exceptions.NoPermissionError()
        ):
            code = "NOPERM"
        case (
            exceptions.BusyLoadingError()
            | exceptions.ReadOnlyError()
            | exceptions.ClusterDownError()
            | exceptions.TryAgainError()
        ):
            code = "LOADING"
        case exceptions.MovedError() | exceptions.AskError() | exceptions.ClusterCrossSlotError():
            code = "MOVED"
        case exceptions.ConnectionError() | exceptions.TimeoutError():
            return StoreGone(
                f"no response from {where}: {text}",
                hint="start the server, or check the address; the follower retries",
            )
    if code in _LOGIN:
        return StoreUnusable(
            f"{where} rejects the login, or the user has no permission: {text}",
            hint="check the user and the password in the address: redis://user:password@host",
        )
    if code in _RETRIABLE:
        return StoreGone(f"{where} does not accept writes at the moment: {text}", hint="the follower retries")
    if code in _OTHER_NODE:
        return StoreUnusable(
            f"{where} is a node of a Redis Cluster, and another node holds the view: {text}",
            hint="use the address of that node, or a separate server",
        )
    if code == "OOM" or "maxmemory" in text:
        return StoreFull(
            f"no memory left at {where}: {text}", hint="raise maxmemory or delete data; the follower retries"
        )
    if code == "MISCONF":
        return StoreFull(
            f"{where} cannot save its data: {text}", hint="check the server's disk; the follower retries"
        )
    if code == "WRONGTYPE":
        return StoreForeign(
            f"{where}: a key of the view exists but is not a hash: {text}",
            hint="rename the key, or use another prefix for the views; the key was not changed",
        )
    return StoreError(f"{where}: {text}")
