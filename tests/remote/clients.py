"""Clients of a test server, with its token."""

from __future__ import annotations

from typing import Any

from faults.serve.http import Http
from headrace.remote import AsyncRemote, Remote
from tests.remote.unreliable_network import Network

__all__ = ["new_async_remote", "new_remote"]


def _client_options(server: Http, network: Network | None, options: dict[str, Any]) -> dict[str, Any]:
    port = network.port if network is not None else server.port
    return {"url": f"http://127.0.0.1:{port}", "token": server.token, "wait_s": 20, **options}


def new_remote(server: Http, network: Network | None = None, **options: Any) -> Remote:
    return Remote(**_client_options(server, network, options))


def new_async_remote(server: Http, network: Network | None = None, **options: Any) -> AsyncRemote:
    return AsyncRemote(**_client_options(server, network, options))
