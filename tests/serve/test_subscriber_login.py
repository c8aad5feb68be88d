"""Permissions of subscribers: each kind of token when a WebSocket opens, and a token that is revoked later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.serve.subscriber_copy import Copy, Ended, events, socket
from faults.views.follower_thread import following
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.serve.features import ROUTES
from headrace.serve.http.tokens import PERMISSIONS, TokenBook, parse_scope, tokens_path

Fresh = Callable[[str], str]


async def _open(port: int, view: str, **more: Any) -> int:
    """Return 0 if the server sends ``hello``, otherwise the close code."""
    try:
        async with socket(port, view, **more) as (_, messages):
            Copy().take(await anext(messages))
            return 0
    except Ended as ended:
        return int(ended.args[0]["close"])


async def _read_close(copy: Copy, messages: Any) -> dict[str, Any]:
    """Return the close message."""
    try:
        while True:
            copy.take(await anext(messages))
    except Ended as ended:
        return dict(ended.args[0])


def test_every_websocket_needs_a_scope_and_a_revoked_token_ends_it(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("login"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 0, "note": None})])
    view = flow.view.name
    scopes = {
        "other": ["read:view:other", f"read:topic:{view}"],
        "named": [f"read:view:{view}"],
        **{action: [f"{action}:*" if named else action] for action, named in PERMISSIONS.items()},
    }
    tokens = {
        name: token_for(tmp_path, name.replace(":", "-"), *token_scopes)
        for name, token_scopes in scopes.items()
    }

    async def run(http: Http) -> None:
        port = http.port
        for route in [route for route in ROUTES if route.websocket]:
            assert route.path == "/v1/views/{view}/changes"
            for name, token in tokens.items():
                allowed = any(parse_scope(scope).allows(route.permission, view) for scope in scopes[name])
                bearer = {"Authorization": f"Bearer {token}"}
                assert await _open(port, view, token=token) == (0 if allowed else 4403), name
                async with events(port, view, headers=bearer) as (status, _):
                    assert status == (200 if allowed else 403), name
                if allowed:
                    assert await _open(port, view, headers=bearer) == 0
                else:
                    # The response does not reveal whether the view exists.
                    assert await _open(port, "not-there", token=token) == 4403
                    with pytest.raises(InvalidStatus) as refused:
                        await _open(port, view, headers=bearer)
                    assert refused.value.response.status_code == 403
            assert await _open(port, view) == 4401
            assert await _open(port, view, token="hr_nothing") == 4401
            async with events(port, view) as (status, _):
                assert status == 401
        assert await _open(port, "not-there", token=tokens["admin"]) == 4404
        address = f"ws://127.0.0.1:{port}/v1/views/{view}/changes"
        for headers, status in (
            ({"Origin": "https://elsewhere.example"}, 403),
            ({"Authorization": "Bearer hr_no"}, 401),
            ({"Authorization": "Basic eDp5"}, 401),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(address, additional_headers=headers):
                    pass
            assert refused.value.response.status_code == status
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{port}/v1/views"):
                pass
        assert refused.value.response.status_code == 404
        bearer = {"Authorization": f"Bearer {tokens['named']}"}
        async with (
            socket(port, view, token=tokens["named"]) as (_, first),
            events(port, view, headers=bearer) as (_, other),
        ):
            copies = [Copy(), Copy()]
            for copy, messages in zip(copies, (first, other), strict=True):
                while copy.position is None:
                    copy.take(await anext(messages))
            TokenBook(tokens_path(tmp_path)).revoke("named")
            for copy, messages in zip(copies, (first, other), strict=True):
                result = await _read_close(copy, messages)
                assert (result["close"], result["retry_ms"], result["cursor"]) == (4401, None, copy.cursor)

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path) as http,
    ):
        followed.expect(flow.derived.rows)
        until(
            lambda: Http(http.port, tokens["admin"]).get("/v1/views").status == 200, "the tokens to be known"
        )
        asyncio.run(asyncio.wait_for(run(http), 60))
        result = "\n".join(http.server_log.lines)  # type: ignore[attr-defined]
        assert '"method":"WEBSOCKET"' in result
        assert not any(token in result or token[-20:] in result for token in tokens.values())
