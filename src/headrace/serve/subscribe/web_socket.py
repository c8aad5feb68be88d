"""Subscriptions over a WebSocket (ASGI). The client's first message contains the query; after it, only the server
sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.routing import compile_path

from headrace.errors import HeadraceError
from headrace.serve.errors import FirstMessageTimeout, InvalidRequest, NotFound
from headrace.serve.http.context import ServeContext
from headrace.serve.http.guard import Guard
from headrace.serve.http.problem import MEDIA_TYPE, Problem, problem_of
from headrace.serve.http.tokens import Caller, bearer_token
from headrace.serve.subscribe.messages import Message, close_code, close_message, error_code
from headrace.serve.subscribe.query import CHARS_MAX, Subscribe, SubscriptionQuery
from headrace.serve.subscribe.subscriber import Subscriber, SubscriberEnded, SubscribeRequest
from headrace.serve.subscribe.subscriptions import Subscriptions

__all__ = ["FIRST_BYTES_MAX", "WebSocketEndpoint", "WebSocketSession"]

FIRST_BYTES_MAX = 64 * 1024
_TEXT_CHARS_MAX = 4_000

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


_decode = msgspec.json.Decoder(Subscribe).decode


class WebSocketSession:
    """One connection. It calls ``on_start`` with the caller once the first message is authorized, and ``on_failure`` if
    the subscription ends with an error.
    """

    def __init__(
        self,
        context: ServeContext,
        subscriptions: Subscriptions,
        view: str,
        headers: Mapping[str, str],
        receive: _Receive,
        send: _Send,
        request_id: str,
        *,
        on_start: Callable[[Caller], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._view = view
        self._headers = headers
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._on_start = on_start
        self._on_failure = on_failure
        self._cursor: str | None = None
        self.sent_bytes = 0
        self.code = 1005
        """The code of the close frame."""

    async def run(self) -> str:
        """Serve the accepted connection. Return the reason for its end."""
        try:
            subscriber = await self._subscribe()
            await self._send_messages(subscriber)
        except SubscriberEnded:
            return "gone"
        except asyncio.CancelledError:
            raise
        except Exception as error:
            return await self._end(error)
        return "gone"

    async def _subscribe(self) -> Subscriber:
        limits = self._context.limits
        try:
            async with asyncio.timeout(limits.receive_s):
                event = await self._receive()
        except TimeoutError:
            raise FirstMessageTimeout(
                f"the WebSocket sent no first message within {limits.receive_s:g} s",
                hint='send {"type": "subscribe", ...} first',
            ) from None
        if event["type"] == "websocket.disconnect":
            raise SubscriberEnded
        first = _parse_first_message(event.get("text"))
        header_token = bearer_token(self._headers)
        if header_token is not None and first.token is not None:
            raise InvalidRequest("the first message and the Authorization header both have a token")
        token = first.token if header_token is None else header_token
        caller = self._subscriptions.authorize(token, self._view)
        self._on_start(caller)
        query = SubscriptionQuery(
            *(self._view, first.filter, first.prefix, first.begin, first.end),
            *(first.match, first.sort, first.limit),
        )
        query.check()
        return self._subscriptions.create(
            SubscribeRequest(
                *(query, first.cursor, "websocket"),
                token=token,
                token_id=caller.token_id,
                accepts_reset=True,
            )
        )

    async def _send_messages(self, subscriber: Subscriber) -> None:
        why = "gone"
        self._subscriptions.enter(subscriber)
        message_watcher = asyncio.create_task(self._end_on_message(subscriber))
        try:
            async with contextlib.aclosing(subscriber.messages()) as messages:
                async for message in messages:
                    await self._send_message(message)
                    subscriber.on_sent(message)
        except SubscriberEnded:
            raise
        except Exception as error:
            why = error_code(error)
            raise
        finally:
            self._cursor = subscriber.last_cursor
            message_watcher.cancel()
            self._subscriptions.leave(subscriber, why)

    async def _end_on_message(self, subscriber: Subscriber) -> None:
        event = await self._receive()
        subscriber.end(
            SubscriberEnded()
            if event["type"] == "websocket.disconnect"
            else InvalidRequest(
                "the server accepts only one message per WebSocket", hint="open another connection"
            )
        )

    async def _send_message(self, message: Message) -> None:
        try:
            await self._send({"type": "websocket.send", "text": message.text})
        except OSError as error:
            raise SubscriberEnded from error
        self.sent_bytes += len(message.data)

    async def _end(self, error: Exception) -> str:
        self._on_failure(error)
        self.code = close_code(error)
        with contextlib.suppress(SubscriberEnded, OSError):
            await self._send_message(close_message(error, self._cursor, self._request_id))
            await self._send({"type": "websocket.close", "code": self.code})
        return error_code(error)


def _parse_first_message(text: str | None) -> Subscribe:
    try:
        if text is None:
            raise ValueError("the message is binary, not text")
        first = _decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the first message is invalid: {str(error)[:200]}", hint='send {"type": "subscribe"}'
        ) from None
    for name in ("filter", "prefix", "begin", "end", "match", "sort"):
        if len(getattr(first, name) or "") > _TEXT_CHARS_MAX:
            raise InvalidRequest(f"{name} must be a text of at most {_TEXT_CHARS_MAX} characters")
    if len(first.cursor or "") > CHARS_MAX:
        raise InvalidRequest(f"cursor must be a text of at most {CHARS_MAX} characters")
    return first


class WebSocketEndpoint:
    """The ASGI application for WebSockets."""

    def __init__(self, context: ServeContext, subscriptions: Subscriptions, guard: Guard) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._guard = guard
        self._paths = [
            (compile_path(route.path)[0], route.path) for route in subscriptions.routes if route.websocket
        ]

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        context = self._context
        started_s = context.clock.steady()
        log = _RequestLog(secrets.token_hex(8))
        await receive()
        status, code, sent = 101, "", 0
        try:
            try:
                view = self._accept(scope, log)
            except HeadraceError as error:
                problem = problem_of(error, log.request_id)
                status, code, sent = problem.status, error.code, len(problem.body)
                await self._refuse(problem, send)
                return
            await send({"type": "websocket.accept"})
            session = WebSocketSession(
                *(context, self._subscriptions, view, Headers(scope=scope), receive, send, log.request_id),
                on_start=lambda caller: log.on_start(caller, scope),
                on_failure=lambda error: self._report_internal(log.request_id, error),
            )
            code = await session.run()
            sent = session.sent_bytes
        finally:
            context.access_log.note(
                now_ms=context.clock.now_ms(),
                request_id=log.request_id,
                method="WEBSOCKET",
                route=log.route,
                names={"view": log.view} if log.view else {},
                caller=log.caller,
                peer=(scope.get("client") or ("",))[0],
                status=status,
                code=code,
                took_s=context.clock.steady() - started_s,
                sent_bytes=sent,
            )

    def _accept(self, scope: _Message, log: _RequestLog) -> str:
        headers = Headers(scope=scope)
        self._guard.check(headers)
        for pattern, path in self._paths:
            match = pattern.match(scope["path"])
            if match is not None:
                log.route, log.view = path, match["view"]
                token = bearer_token(headers)
                if token is not None:
                    # If the headers have no token, the first message can contain it.
                    self._subscriptions.authorize(token, log.view)
                return log.view
        raise NotFound("no WebSocket route has this path", hint="see GET /docs")

    async def _refuse(self, problem: Problem, send: _Send) -> None:
        headers = {"Content-Type": MEDIA_TYPE, "Connection": "close", **problem.headers}
        raw = [(name.lower().encode(), text.encode("latin-1", "replace")) for name, text in headers.items()]
        await send({"type": "websocket.http.response.start", "status": problem.status, "headers": raw})
        await send({"type": "websocket.http.response.body", "body": problem.body})

    def _report_internal(self, request_id: str, error: BaseException) -> None:
        if not isinstance(error, HeadraceError) or problem_of(error, request_id).status == 500:
            self._context.report(request_id, error)


class _RequestLog:
    """Values of the connection for the access log."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.route = "none"
        self.view = ""
        self.caller = ""

    def on_start(self, caller: Caller, scope: _Message) -> None:
        self.caller = caller.name
        scope["headrace.settle"]()
