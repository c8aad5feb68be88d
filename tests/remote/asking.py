"""Clients of a server of the tests, each with the token that it asks for."""

from __future__ import annotations

from typing import Any

from headrace.remote import AsyncRemote, Remote
from tests.remote.cutting import Network
from tests.serve.http import Http

__all__ = ["asking", "asking_async"]


def _known(server: Http, over: Network | None, options: dict[str, Any]) -> dict[str, Any]:
    port = over.port if over is not None else server.port
    return {"url": f"http://127.0.0.1:{port}", "token": server.token, "wait_s": 20, **options}


def asking(server: Http, over: Network | None = None, **options: Any) -> Remote:
    return Remote(**_known(server, over, options))


def asking_async(server: Http, over: Network | None = None, **options: Any) -> AsyncRemote:
    return AsyncRemote(**_known(server, over, options))
