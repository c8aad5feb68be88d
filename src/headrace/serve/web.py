"""A request from its first line to the last byte of its answer: is it ours, who asks, may they, what for."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import urllib.parse
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.routing import compile_path

from headrace.errors import HeadraceError
from headrace.ops.dead.dead_topic import spring_origin
from headrace.serve.errors import (
    BodyTooLarge,
    MediaUnknown,
    MethodUnknown,
    NotAllowed,
    NotLoggedIn,
    NotThere,
    ReceiptTooSlow,
    RequestUnfit,
)
from headrace.serve.guard import Guard
from headrace.serve.problem import MEDIA_TYPE, problem_of, unexpected
from headrace.serve.route import JSON, Answer, Call, Route
from headrace.serve.safe_headers import SAFE_HEADERS
from headrace.serve.scope import PUBLIC, WRITE_TOPIC
from headrace.serve.served import ANYBODY, NOBODY, Served
from headrace.serve.subscriptions.door import SocketDoor
from headrace.serve.tokens import Caller
from headrace.serve.traces import Span

__all__ = ["Web"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_NO_ROUTE = "none"
_NAMES_KEPT = 256


@lru_cache(_NAMES_KEPT)
def _raw_name(name: str) -> bytes:
    return name.lower().encode()


_SAFE_RAW = {_raw_name(name): text.encode("latin-1") for name, text in SAFE_HEADERS.items()}


@dataclass(slots=True)
class _Heard:
    """What became known of a request on the way, for the log."""

    request_id: str
    route: str = _NO_ROUTE
    names: Mapping[str, str] = field(default_factory=dict)
    caller: Caller = NOBODY
    code: str = ""


class Web:
    """An application of ASGI. ``report`` takes what must not be lost: faults of ours."""

    def __init__(self, served: Served, guard: Guard, report: Callable[[str, BaseException], None]) -> None:
        self._served = served
        self._guard = guard
        self._report = report
        self._door = SocketDoor(served, guard, report)
        self._routes = [(compile_path(one.path)[0], one) for one in served.routes]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._door(scope, receive, send)
            return
        assert scope["type"] == "http", scope["type"]
        served = self._served
        began = served.clock.steady()
        heard = _Heard(secrets.token_hex(8))
        served.counts.in_flight += 1
        status, sent = 0, 0
        try:
            headers = Headers(scope=scope)
            with served.traces.request(scope["method"], headers) as span:
                answer = await self._answer(scope, headers, receive, heard, began)
                status, sent = answer.status, len(answer.body)
                _trace(span, scope["method"], heard, status)
                stream = answer.stream if scope["method"] != "HEAD" else None
                if stream is None:
                    await self._send(answer, headers, heard, send)
            if stream is not None:
                # It may go on for days, and a span is told of when it ends.
                sent = await self._stream(answer, stream(receive), headers, heard, send)
        finally:
            served.counts.in_flight -= 1
            took_s = served.clock.steady() - began
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "other"
            served.counts.note(heard.route, method, status, took_s, sent)
            served.access_log.note(
                now_ms=served.clock.now_ms(),
                request_id=heard.request_id,
                method=method,
                route=heard.route,
                names=heard.names,
                caller=heard.caller.name,
                peer=(scope.get("client") or ("",))[0],
                status=status,
                code=heard.code,
                took_s=took_s,
                sent_bytes=sent,
            )

    async def _answer(
        self, scope: Message, headers: Headers, receive: Receive, heard: _Heard, began: float
    ) -> Answer:
        try:
            self._guard.check(headers)
            return await self._dispatched(scope, headers, receive, heard, began)
        except HeadraceError as error:
            heard.code = error.code
            problem = problem_of(error, heard.request_id)
            if problem.status == 500:
                self._report(heard.request_id, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            heard.code = "HR-SERVE-FAULT"
            problem = unexpected(heard.request_id)
            self._report(heard.request_id, error)
        return Answer(problem.body, problem.status, MEDIA_TYPE, problem.headers)

    async def _dispatched(
        self, scope: Message, headers: Headers, receive: Receive, heard: _Heard, began: float
    ) -> Answer:
        path, method = scope["path"], scope["method"]
        _expect_text(scope)
        found = [(route, match) for pattern, route in self._routes if (match := pattern.match(path))]
        if not found:
            raise NotThere("there is no such route", hint="see GET /docs")
        heard.route = found[0][0].path
        methods = [route.method for route, _ in found]
        if method == "OPTIONS":
            allowed = ", ".join(_allowed(methods))
            if "access-control-request-method" in headers:
                return Answer(b"", 204, headers=self._guard.preflight(headers, _allowed(methods)))
            return Answer(b"", 204, headers={"Allow": allowed})
        wanted = "GET" if method == "HEAD" else method
        route, match = next(((one, match) for one, match in found if one.method == wanted), (None, None))
        if route is None or match is None:
            raise MethodUnknown(
                f"this route does not take {method[:20]}", headers={"Allow": ", ".join(_allowed(methods))}
            )
        names = match.groupdict()
        heard.names = names
        caller = heard.caller = self._caller(headers)
        self._expect_allowed(route, caller, names)
        asked = _asked(route, scope, names)
        body = await self._body(headers, receive) if route.body is not None else b""
        call = Call(
            *(self._served, caller, route, path, names, asked, headers, began, body),
            request_id=heard.request_id,
            failed=lambda error: self._failed(heard, error),
        )
        return await route.handle(call)

    def _failed(self, heard: _Heard, error: BaseException) -> None:
        """What goes wrong once an answer has begun."""
        heard.code = error.code if isinstance(error, HeadraceError) else "HR-SERVE-FAULT"
        if not isinstance(error, HeadraceError) or problem_of(error, heard.request_id).status == 500:
            self._report(heard.request_id, error)

    # Who asks

    def _caller(self, headers: Headers) -> Caller:
        kind, _, text = headers.get("authorization", "").partition(" ")
        if "authorization" in headers:
            found = self._served.tokens.caller(text.strip()) if kind.lower() == "bearer" else None
            if found is None:
                raise _not_logged_in("the token is not known, was revoked, or has expired")
            return found
        return NOBODY if self._served.tokens.are_needed() else ANYBODY

    def _expect_allowed(self, route: Route, caller: Caller, names: Mapping[str, str]) -> None:
        if route.action == PUBLIC:
            return
        if not caller.scopes:
            raise _not_logged_in("a token is needed")
        if route.listed:
            return
        if route.any_name:
            if not caller.may_some(route.action):
                raise NotAllowed(
                    f"the token does not allow {route.action} of anything",
                    hint=f"give it the scope: headrace token create NAME --scope {route.action}:NAME",
                )
            return
        # Whether the thing is there is not for those to know who may not see it.
        for name in _scoped_names(route.action, names[route.named] if route.named else ""):
            if not caller.may(route.action, name):
                raise NotAllowed(
                    f"the token does not allow {route.action}{f':{name[:100]}' if name else ''}",
                    hint="give it the scope: headrace token create NAME --scope SCOPE",
                )

    # What they say

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != JSON:
            raise MediaUnknown(f"the body must be {JSON}", hint=f"say so: Content-Type: {JSON}")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise MediaUnknown("the body must not be compressed")
        if len(headers.getlist("idempotency-key")) > 1:
            raise RequestUnfit("Idempotency-Key is there twice")
        limits = self._served.limits
        told = headers.get("content-length", "0")
        if told.isdecimal() and int(told[:20]) > limits.body_bytes_max:
            raise _too_large(limits.body_bytes_max)
        body = bytearray()
        try:
            async with asyncio.timeout(limits.receive_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ReceiptTooSlow("the connection was closed before the body was there")
                    body += message.get("body", b"")
                    if len(body) > limits.body_bytes_max:
                        raise _too_large(limits.body_bytes_max)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise ReceiptTooSlow(
                f"the body was not there within {limits.receive_s:g} s",
                headers={"Connection": "close"},
            ) from None

    async def _stream(
        self, answer: Answer, chunks: AsyncGenerator[bytes], headers: Headers, heard: _Heard, send: Send
    ) -> int:
        """How many bytes it was in the end."""
        sent = 0
        await self._begin(answer, headers, heard, send)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                sent += len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return sent

    async def _send(self, answer: Answer, headers: Headers, heard: _Heard, send: Send) -> None:
        await self._begin(answer, headers, heard, send)
        await send({"type": "http.response.body", "body": answer.body})

    async def _begin(self, answer: Answer, headers: Headers, heard: _Heard, send: Send) -> None:
        told = {
            **self._guard.answer_headers(headers),
            "Headrace-Request-Id": heard.request_id,
            **answer.headers,
        }
        if answer.status not in (204, 304):
            told["Content-Type"] = answer.media_type
            if answer.stream is None:
                told["Content-Length"] = str(len(answer.body))
        if self._served.draining:
            told["Connection"] = "close"
        raw = _SAFE_RAW | {_raw_name(name): text.encode("latin-1", "replace") for name, text in told.items()}
        await send({"type": "http.response.start", "status": answer.status, "headers": [*raw.items()]})


def _trace(span: Span, method: str, heard: _Heard, status: int) -> None:
    told: dict[str, str | int] = {
        "http.response.status_code": status,
        "headrace.request_id": heard.request_id,
    }
    if heard.route == _NO_ROUTE:
        span.note(told)
    else:
        named = {f"headrace.{one}": heard.names[one][:249] for one in ("view", "topic") if one in heard.names}
        span.note({**told, **named, "http.route": heard.route}, f"{method} {heard.route}")
    if status >= 500:
        span.fail(heard.code or str(status))


def _expect_text(scope: Message) -> None:
    """What is no UTF-8 would be read as if it were something else."""
    for told, what in ((scope["raw_path"], "path"), (scope["query_string"], "query")):
        try:
            urllib.parse.unquote_to_bytes(told).decode()
        except UnicodeDecodeError:
            raise RequestUnfit(f"the {what} is not UTF-8", hint="encode it as UTF-8, then with %") from None


def _asked(route: Route, scope: Message, names: Mapping[str, str]) -> dict[str, Any]:
    """Every parameter is known, there once, and of its type."""
    known = {one.name: one for one in route.parameters if one.where == "query"}
    asked: dict[str, Any] = {}
    for name, given in QueryParams(scope["query_string"]).multi_items():
        if name not in known:
            told = f"it takes {', '.join(known)}" if known else "it takes none"
            raise RequestUnfit(f"this route has no parameter {name[:60]!r}", hint=told)
        if name in asked:
            raise RequestUnfit(f"{name} is there twice")
        asked[name] = known[name].value(given)
    for one in route.parameters:
        if one.where == "path":
            one.value(names[one.name])
    return asked


def _allowed(methods: list[Any]) -> list[str]:
    return [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]


def _scoped_names(action: str, name: str) -> list[str]:
    """What a token must allow. Writing a dead letter needs what writing to its origin needs: it is replayed there."""
    names = [name]
    while action == WRITE_TOPIC and (origin := spring_origin(names[-1])) is not None:
        names.append(origin)
    return names


def _not_logged_in(message: str) -> NotLoggedIn:
    return NotLoggedIn(
        message,
        hint="send one: Authorization: Bearer TOKEN; headrace token create makes one",
        headers={"WWW-Authenticate": 'Bearer realm="headrace"'},
    )


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body has more than {most} bytes",
        hint="send less at a time, or raise serve.body_bytes_max",
        headers={"Connection": "close"},
    )
