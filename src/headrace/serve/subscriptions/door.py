"""A WebSocket from its handshake to its close: is it ours, what for, and a line in the log at the end."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.routing import compile_path

from headrace.errors import HeadraceError
from headrace.serve.errors import NotThere
from headrace.serve.guard import Guard
from headrace.serve.problem import MEDIA_TYPE, Problem, problem_of
from headrace.serve.subscriptions.login import bearer, expect_allowed
from headrace.serve.subscriptions.socket import Socket
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["SocketDoor"]

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class SocketDoor:
    """``report`` takes what must not be lost: faults of ours."""

    def __init__(self, served: Served, guard: Guard, report: Callable[[str, BaseException], None]) -> None:
        self._served = served
        self._guard = guard
        self._report = report
        self._paths = [(compile_path(one.path)[0], one.path) for one in served.routes if one.socket]

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        served = self._served
        began = served.clock.steady()
        heard = _Heard(secrets.token_hex(8))
        await receive()
        status, code, sent = 101, "", 0
        try:
            try:
                view = self._expect_ours(scope, heard)
            except HeadraceError as error:
                problem = problem_of(error, heard.request_id)
                status, code, sent = problem.status, error.code, len(problem.body)
                await self._refuse(problem, send)
                return
            await send({"type": "websocket.accept"})
            socket = Socket(
                *(served, view, Headers(scope=scope), receive, send, heard.request_id),
                begun=lambda caller: heard.begun(caller, scope),
                failed=lambda error: self._note(heard.request_id, error),
            )
            code = await socket.run()
            sent = socket.sent_bytes
        finally:
            served.access_log.note(
                now_ms=served.clock.now_ms(),
                request_id=heard.request_id,
                method="WEBSOCKET",
                route=heard.route,
                names={"view": heard.view} if heard.view else {},
                caller=heard.caller,
                peer=(scope.get("client") or ("",))[0],
                status=status,
                code=code,
                took_s=served.clock.steady() - began,
                sent_bytes=sent,
            )

    def _expect_ours(self, scope: _Message, heard: _Heard) -> str:
        headers = Headers(scope=scope)
        self._guard.check(headers)
        for pattern, path in self._paths:
            match = pattern.match(scope["path"])
            if match is not None:
                heard.route, heard.view = path, match["view"]
                token = bearer(headers)
                if token is not None:
                    # Who has none here may have one in the first message.
                    expect_allowed(self._served, token, heard.view)
                return heard.view
        raise NotThere("there is no such route for a WebSocket", hint="see GET /docs")

    async def _refuse(self, problem: Problem, send: _Send) -> None:
        told = {"Content-Type": MEDIA_TYPE, "Connection": "close", **problem.headers}
        raw = [(name.lower().encode(), text.encode("latin-1", "replace")) for name, text in told.items()]
        await send({"type": "websocket.http.response.start", "status": problem.status, "headers": raw})
        await send({"type": "websocket.http.response.body", "body": problem.body})

    def _note(self, request_id: str, error: BaseException) -> None:
        if not isinstance(error, HeadraceError) or problem_of(error, request_id).status == 500:
            self._report(request_id, error)


class _Heard:
    """What became known on the way, for the log."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.route = "none"
        self.view = ""
        self.caller = ""

    def begun(self, caller: Caller | None, scope: _Message) -> None:
        self.caller = caller.name if caller else ""
        scope["headrace.settle"]()
