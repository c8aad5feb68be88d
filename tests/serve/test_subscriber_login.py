"""Who may follow: every socket, with every kind of token, at the beginning and all the while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from bench.faults.flow_by_hand import FlowByHand
from headrace.client.cluster import Cluster
from headrace.serve.routes import ROUTES
from headrace.serve.scope import ACTIONS, parse_scope
from headrace.serve.tokens import TokenBook, tokens_path
from tests.serve.copying import Copy, Ended, events, socket
from tests.serve.http import Http
from tests.serve.serving import served, token_for
from tests.support.waiting import until
from tests.views.seeing import following

Fresh = Callable[[str], str]


async def _first(port: int, view: str, **more: Any) -> int:
    """0 if it is greeted; else the code that it is closed with."""
    try:
        async with socket(port, view, **more) as (_, messages):
            Copy().take(await anext(messages))
            return 0
    except Ended as ended:
        return int(ended.args[0]["close"])


async def _last(copy: Copy, messages: Any) -> dict[str, Any]:
    """What is said at the end."""
    try:
        while True:
            copy.take(await anext(messages))
    except Ended as ended:
        return dict(ended.args[0])


def test_every_socket_has_a_scope_and_a_token_that_is_revoked_ends_what_it_began(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("login"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 0, "note": None})])
    view = flow.view.name
    scopes = {
        "other": ["read:view:other", f"read:topic:{view}"],
        "named": [f"read:view:{view}"],
        **{action: [f"{action}:*" if named else action] for action, named in ACTIONS.items()},
    }
    tokens = {name: token_for(tmp_path, name.replace(":", "-"), *some) for name, some in scopes.items()}

    async def run(http: Http) -> None:
        port = http.port
        for route in [one for one in ROUTES if one.socket]:
            assert route.path == "/v1/views/{view}/changes"
            for name, token in tokens.items():
                allowed = any(parse_scope(one).allows(route.action, view) for one in scopes[name])
                bearer = {"Authorization": f"Bearer {token}"}
                assert await _first(port, view, token=token) == (0 if allowed else 4403), name
                async with events(port, view, headers=bearer) as (status, _):
                    assert status == (200 if allowed else 403), name
                if allowed:
                    assert await _first(port, view, headers=bearer) == 0
                else:
                    # No word on whether there is such a view.
                    assert await _first(port, "not-there", token=token) == 4403
                    with pytest.raises(InvalidStatus) as refused:
                        await _first(port, view, headers=bearer)
                    assert refused.value.response.status_code == 403
            assert await _first(port, view) == 4401
            assert await _first(port, view, token="hr_nothing") == 4401
            async with events(port, view) as (status, _):
                assert status == 401
        assert await _first(port, "not-there", token=tokens["admin"]) == 4404
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
            socket(port, view, token=tokens["named"]) as (_, one),
            events(port, view, headers=bearer) as (_, other),
        ):
            copies = [Copy(), Copy()]
            for copy, messages in zip(copies, (one, other), strict=True):
                while copy.position is None:
                    copy.take(await anext(messages))
            TokenBook(tokens_path(tmp_path)).revoke("named")
            for copy, messages in zip(copies, (one, other), strict=True):
                told = await _last(copy, messages)
                assert (told["close"], told["retry_ms"], told["cursor"]) == (4401, None, copy.cursor)

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path) as http,
    ):
        followed.expect(flow.derived.rows)
        until(
            lambda: Http(http.port, tokens["admin"]).get("/v1/views").status == 200, "the tokens to be known"
        )
        asyncio.run(asyncio.wait_for(run(http), 60))
        told = "\n".join(http.heard.lines)  # type: ignore[attr-defined]
        assert '"method":"WEBSOCKET"' in told
        assert not any(token in told or token[-20:] in told for token in tokens.values())
