"""The ASGI application: handles one HTTP request, from its headers to the last byte of its response.

It checks, in this order, the host and origin (``guard``), route, token, scope, parameters and body. Then it calls the
handler. It turns every error into a problem document (RFC 9457).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import urllib.parse
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.routing import compile_path

from headrace.errors import HeadraceError
from headrace.ops.dead.dead_topic import spring_origin
from headrace.serve.errors import (
    BodyTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    NotAllowed,
    NotFound,
    NotLoggedIn,
    RequestBodyTimeout,
    UnsupportedMediaType,
)
from headrace.serve.http.context import ServeContext
from headrace.serve.http.guard import SAFE_HEADERS, Guard
from headrace.serve.http.problem import MEDIA_TYPE, problem_of, unexpected
from headrace.serve.http.request_log import RequestMetrics, Span
from headrace.serve.http.route import JSON, Request, Response, Route
from headrace.serve.http.tokens import (
    ANONYMOUS,
    LOCAL_ADMIN,
    PUBLIC,
    WRITE_TOPIC,
    Caller,
    TokenVerifier,
    bearer_token,
)

__all__ = ["Handler", "HttpApplication"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[[Request], Awaitable[Response]]
WebSocket = Callable[[Message, Receive, Send], Awaitable[None]]

_NO_ROUTE = "none"
_NAMES_CACHED = 256


@lru_cache(_NAMES_CACHED)
def _raw_name(name: str) -> bytes:
    return name.lower().encode()


_SAFE_RAW = {_raw_name(name): text.encode("latin-1") for name, text in SAFE_HEADERS.items()}


@dataclass(slots=True)
class _RequestLog:
    """Values of one request for the access log, the metrics and the trace. The application sets each value as soon as
    it is known.
    """

    request_id: str
    route: str = _NO_ROUTE
    names: Mapping[str, str] = field(default_factory=dict)
    caller: Caller = ANONYMOUS
    code: str = ""


class HttpApplication:
    """``websocket`` handles the WebSocket connections."""

    def __init__(
        self,
        context: ServeContext,
        tokens: TokenVerifier,
        guard: Guard,
        handlers: Sequence[tuple[Route, Handler]],
        metrics: RequestMetrics,
        websocket: WebSocket,
    ) -> None:
        self._context = context
        self._tokens = tokens
        self._guard = guard
        self._handlers = [(compile_path(route.path)[0], route, handler) for route, handler in handlers]
        self._metrics = metrics
        self._websocket = websocket

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        assert scope["type"] == "http", scope["type"]
        context = self._context
        started_s = context.clock.steady()
        log = _RequestLog(secrets.token_hex(8))
        self._metrics.in_flight += 1
        status, sent_bytes = 0, 0
        try:
            headers = Headers(scope=scope)
            with context.traces.request(scope["method"], headers) as span:
                response = await self._respond(scope, headers, receive, log, started_s)
                status, sent_bytes = response.status, len(response.body)
                _trace(span, scope["method"], log, status)
                stream = response.stream if scope["method"] != "HEAD" else None
                if stream is None:
                    await self._send(response, headers, log, send)
            if stream is not None:
                # Send the stream outside the span: a stream can last for days, and a span is exported only at its end.
                sent_bytes = await self._stream(response, stream(receive), headers, log, send)
        finally:
            self._metrics.in_flight -= 1
            took_s = context.clock.steady() - started_s
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "other"
            self._metrics.note(log.route, method, status, took_s, sent_bytes)
            context.access_log.note(
                now_ms=context.clock.now_ms(),
                request_id=log.request_id,
                method=method,
                route=log.route,
                names=log.names,
                caller=log.caller.name,
                peer=(scope.get("client") or ("",))[0],
                status=status,
                code=log.code,
                took_s=took_s,
                sent_bytes=sent_bytes,
            )

    async def _respond(
        self, scope: Message, headers: Headers, receive: Receive, log: _RequestLog, started_s: float
    ) -> Response:
        try:
            self._guard.check(headers)
            return await self._dispatch(scope, headers, receive, log, started_s)
        except HeadraceError as error:
            log.code = error.code
            problem = problem_of(error, log.request_id)
            if problem.status == 500:
                self._context.report(log.request_id, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.code = "HR-SERVE-FAULT"
            problem = unexpected(log.request_id)
            self._context.report(log.request_id, error)
        return Response(problem.body, problem.status, MEDIA_TYPE, problem.headers)

    async def _dispatch(
        self, scope: Message, headers: Headers, receive: Receive, log: _RequestLog, started_s: float
    ) -> Response:
        path, method = scope["path"], scope["method"]
        _expect_utf8(scope)
        matching = [
            (route, handler, match)
            for pattern, route, handler in self._handlers
            if (match := pattern.match(path))
        ]
        if not matching:
            raise NotFound("no such route", hint="GET /docs lists the routes")
        log.route = matching[0][0].path
        methods = [route.method for route, _, _ in matching]
        if method == "OPTIONS":
            if "access-control-request-method" in headers:
                return Response(b"", 204, headers=self._guard.preflight(headers, _allowed(methods)))
            return Response(b"", 204, headers={"Allow": ", ".join(_allowed(methods))})
        route_method = "GET" if method == "HEAD" else method
        matched = next((entry for entry in matching if entry[0].method == route_method), None)
        if matched is None:
            raise MethodNotAllowed(
                f"this route does not support {method[:20]}",
                headers={"Allow": ", ".join(_allowed(methods))},
            )
        route, handler, match = matched
        names = match.groupdict()
        log.names = names
        caller = log.caller = self._caller(headers)
        _expect_permission(route, caller, names)
        request = Request(
            *(caller, route, path, names, _parameters(route, scope, names), headers, started_s),
            body=await self._body(headers, receive) if route.body is not None else b"",
            request_id=log.request_id,
            report_failure=lambda error: self._stream_failed(log, error),
        )
        return await handler(request)

    def _stream_failed(self, log: _RequestLog, error: BaseException) -> None:
        """Record an error that occurs after the response has started."""
        log.code = error.code if isinstance(error, HeadraceError) else "HR-SERVE-FAULT"
        if not isinstance(error, HeadraceError) or problem_of(error, log.request_id).status == 500:
            self._context.report(log.request_id, error)

    # Request

    def _caller(self, headers: Headers) -> Caller:
        token = bearer_token(headers)
        if token is None:
            return ANONYMOUS if self._tokens.are_needed() else LOCAL_ADMIN
        caller = self._tokens.caller(token)
        if caller is None:
            raise _not_logged_in("the token is unknown, revoked or expired")
        return caller

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != JSON:
            raise UnsupportedMediaType(f"the body must be {JSON}", hint=f"send Content-Type: {JSON}")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("the body must not be compressed")
        if len(headers.getlist("idempotency-key")) > 1:
            raise InvalidRequest("the request has more than one Idempotency-Key header")
        limits = self._context.limits
        content_length = headers.get("content-length", "0")
        if content_length.isdecimal() and int(content_length[:20]) > limits.body_bytes_max:
            raise _too_large(limits.body_bytes_max)
        body = bytearray()
        try:
            async with asyncio.timeout(limits.receive_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestBodyTimeout("the connection was closed before the body was complete")
                    body += message.get("body", b"")
                    if len(body) > limits.body_bytes_max:
                        raise _too_large(limits.body_bytes_max)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RequestBodyTimeout(
                f"the body was not complete within {limits.receive_s:g} s",
                headers={"Connection": "close"},
            ) from None

    # Response

    async def _stream(
        self,
        response: Response,
        chunks: AsyncGenerator[bytes],
        headers: Headers,
        log: _RequestLog,
        send: Send,
    ) -> int:
        """Send the chunks and return the number of bytes sent."""
        sent_bytes = 0
        await self._start(response, headers, log, send)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                sent_bytes += len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return sent_bytes

    async def _send(self, response: Response, headers: Headers, log: _RequestLog, send: Send) -> None:
        await self._start(response, headers, log, send)
        await send({"type": "http.response.body", "body": response.body})

    async def _start(self, response: Response, headers: Headers, log: _RequestLog, send: Send) -> None:
        fields = {
            **self._guard.cors_headers(headers),
            "Headrace-Request-Id": log.request_id,
            **response.headers,
        }
        if response.status not in (204, 304):
            fields["Content-Type"] = response.media_type
            if response.stream is None:
                fields["Content-Length"] = str(len(response.body))
        if self._context.draining:
            fields["Connection"] = "close"
        raw = _SAFE_RAW | {
            _raw_name(name): text.encode("latin-1", "replace") for name, text in fields.items()
        }
        await send({"type": "http.response.start", "status": response.status, "headers": [*raw.items()]})


def _trace(span: Span, method: str, log: _RequestLog, status: int) -> None:
    attributes: dict[str, str | int] = {
        "http.response.status_code": status,
        "headrace.request_id": log.request_id,
    }
    if log.route == _NO_ROUTE:
        span.note(attributes)
    else:
        names = {f"headrace.{kind}": log.names[kind][:249] for kind in ("view", "topic") if kind in log.names}
        span.note({**attributes, **names, "http.route": log.route}, f"{method} {log.route}")
    if status >= 500:
        span.fail(log.code or str(status))


def _expect_utf8(scope: Message) -> None:
    """Raise unless path and query are UTF-8. Starlette would replace invalid bytes, which changes the requested
    name.
    """
    for raw, what in ((scope["raw_path"], "path"), (scope["query_string"], "query")):
        try:
            urllib.parse.unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"the {what} is not UTF-8", hint="encode it as UTF-8, then percent-encode it"
            ) from None


def _expect_permission(route: Route, caller: Caller, names: Mapping[str, str]) -> None:
    """Raise unless the caller's scopes allow the route.

    This check runs before the handler, so that a caller without the scope cannot learn whether the resource exists.
    """
    if route.permission == PUBLIC:
        return
    if not caller.scopes:
        raise _not_logged_in("this route needs a token")
    if route.is_filtered:
        return
    if route.any_name:
        if not caller.may_for_some_name(route.permission):
            raise NotAllowed(
                f"the token has no {route.permission} scope",
                hint=f"create one: headrace token create NAME --scope {route.permission}:NAME",
            )
        return
    for name in _scoped_names(
        route.permission, names[route.permission_name] if route.permission_name else ""
    ):
        if not caller.may(route.permission, name):
            raise NotAllowed(
                f"the token does not allow {route.permission}{f':{name[:100]}' if name else ''}",
                hint="create one with this scope: headrace token create NAME --scope SCOPE",
            )


def _scoped_names(permission: str, name: str) -> list[str]:
    """Return the names that the caller's scopes must allow.

    Writing to a dead-letter topic of Spring also needs the scope for its origin topic, because a replay writes there.
    """
    names = [name]
    while permission == WRITE_TOPIC and (origin := spring_origin(names[-1])) is not None:
        names.append(origin)
    return names


def _parameters(route: Route, scope: Message, names: Mapping[str, str]) -> dict[str, Any]:
    """Parse the parameters. The route must declare each one, and each may occur only once."""
    declared = {parameter.name: parameter for parameter in route.parameters if parameter.where == "query"}
    values: dict[str, Any] = {}
    for name, raw in QueryParams(scope["query_string"]).multi_items():
        if name not in declared:
            hint = (
                f"this route has the parameters {', '.join(declared)}"
                if declared
                else "this route has no parameters"
            )
            raise InvalidRequest(f"this route has no parameter {name[:60]!r}", hint=hint)
        if name in values:
            raise InvalidRequest(f"parameter {name} occurs twice")
        values[name] = declared[name].value(raw)
    for parameter in route.parameters:
        if parameter.where == "path":
            parameter.value(names[parameter.name])
    return values


def _allowed(methods: Sequence[str]) -> list[str]:
    return [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]


def _not_logged_in(message: str) -> NotLoggedIn:
    return NotLoggedIn(
        message,
        hint="send Authorization: Bearer TOKEN; headrace token create creates a token",
        headers={"WWW-Authenticate": 'Bearer realm="headrace"'},
    )


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit} bytes",
        hint="split the request into smaller ones, or raise serve.body_bytes_max",
        headers={"Connection": "close"},
    )
