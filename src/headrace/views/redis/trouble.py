"""What Redis and its client say when something fails, in our terms."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from redis import exceptions as said

from headrace.views.errors import StoreError, StoreForeign, StoreFull, StoreGone, StoreUnusable

__all__ = ["told_as"]

# As Redis 6 tells what a command within a script says.
_IN_SCRIPT = re.compile(r"@user_script: ?[0-9]+: -?([A-Z]+) ").search
# What kept EXEC from being done, where it came after the last command was taken.
_AT_EXEC = re.compile(r"discarded because of: -?([A-Z]+) ").search
_LATER = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "UNBLOCKED", "READONLY")
_LOGIN = ("WRONGPASS", "NOAUTH", "NOPERM")
_ELSEWHERE = ("MOVED", "ASK", "CROSSSLOT")


@contextlib.contextmanager
def told_as(where: str) -> Iterator[None]:
    try:
        yield
    except said.RedisError as error:
        raise _translated(where, error) from error


def _translated(where: str, error: said.RedisError) -> StoreError:
    # The client takes the first word off the errors that it has a class for.
    text = str(error)
    inner = _IN_SCRIPT(text) or _AT_EXEC(text)
    word = inner[1] if inner else text.partition(" ")[0]
    match error:
        case said.AuthenticationError() | said.AuthorizationError() | said.NoPermissionError():
            word = "NOPERM"
        case said.BusyLoadingError() | said.ReadOnlyError() | said.ClusterDownError() | said.TryAgainError():
            word = "LOADING"
        case said.MovedError() | said.AskError() | said.ClusterCrossSlotError():
            word = "MOVED"
        case said.ConnectionError() | said.TimeoutError():
            return StoreGone(
                f"{where} does not answer: {text}",
                hint="start it, or check the address; it goes on by itself",
            )
    if word in _LOGIN:
        return StoreUnusable(
            f"{where} refuses the login, or what it may do: {text}",
            hint="the user and the password are a part of the address: redis://user:password@host",
        )
    if word in _LATER:
        return StoreGone(f"{where} takes no writes now: {text}", hint="it is tried again")
    if word in _ELSEWHERE:
        return StoreUnusable(
            f"{where} is a node of a Redis Cluster, and the view belongs to another: {text}",
            hint="name the address of that node, or a server of its own",
        )
    if word == "OOM" or "maxmemory" in text:
        return StoreFull(
            f"no memory left at {where}: {text}", hint="raise maxmemory or make room; it goes on by itself"
        )
    if word == "MISCONF":
        return StoreFull(
            f"{where} cannot save its data: {text}", hint="look at the server's disk; it is tried again"
        )
    if word == "WRONGTYPE":
        return StoreForeign(
            f"{where}: under a view's key there is something else than a hash: {text}",
            hint="rename it, or give the views another prefix; it was left as it is",
        )
    return StoreError(f"{where}: {text}")
