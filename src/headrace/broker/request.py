"""One request as a handler sees it: decoded, with what is known of who sent it."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.wire.api import Api

__all__ = ["Request"]


class Request(NamedTuple):
    """``message`` is an instance of the request class of ``api``; its fields are those of ``version``."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    message: Any
    client_host: str
    connection: object | None = None
    """What stands for the connection; only good to tell it from others."""
