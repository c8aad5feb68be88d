"""Whether whoever follows may, at the beginning and all the while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.serve.errors import NotAllowed, NotLoggedIn, ServeError
from headrace.serve.scope import READ_VIEW
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["bearer", "expect_allowed", "still_allowed"]


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token that a request has in its head; None if it has none, and nothing if it has something else."""
    if "authorization" not in headers:
        return None
    kind, _, text = headers["authorization"].partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def expect_allowed(served: Served, token: str | None, view: str) -> Caller | None:
    """Who it is; None where nobody needs a token. Raises if they may not follow the view."""
    if token is None:
        if served.tokens.are_needed():
            raise NotLoggedIn(
                "a token is needed",
                hint="send one, as token in the first message, or as Authorization: Bearer TOKEN",
            )
        return None
    caller = served.tokens.caller(token)
    if caller is None:
        raise NotLoggedIn(
            "the token is not known, was revoked, or has expired", hint="headrace token create makes another"
        )
    if not caller.may(READ_VIEW, view):
        # Whether there is such a view is not for those to know who may not see it.
        raise NotAllowed(
            f"the token does not allow {READ_VIEW}:{view[:100]}",
            hint="give it the scope: headrace token create NAME --scope SCOPE",
        )
    return caller


def still_allowed(served: Served, token: str | None, view: str) -> ServeError | None:
    """Why not any more. The first token that is made shuts out those who came without."""
    try:
        expect_allowed(served, token, view)
    except ServeError as error:
        return error
    return None
