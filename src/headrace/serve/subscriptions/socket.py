"""A subscription over a WebSocket, as ASGI tells it: the first message says what is wanted, then the server speaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.serve.errors import RequestUnfit
from headrace.serve.subscriptions.bookmark import CHARS_MAX
from headrace.serve.subscriptions.errors import FirstMessageLate
from headrace.serve.subscriptions.farewell import close_code, farewell, why_of
from headrace.serve.subscriptions.login import bearer, expect_allowed
from headrace.serve.subscriptions.message import Message
from headrace.serve.subscriptions.subscriber import Gone, Subscriber
from headrace.serve.subscriptions.wanted import Wanted
from headrace.serve.tokens import Caller

if TYPE_CHECKING:
    from headrace.serve.served import Served

__all__ = ["FIRST_BYTES_MAX", "Socket"]

FIRST_BYTES_MAX = 64 * 1024
_TEXT_CHARS_MAX = 4_000

_Told = MutableMapping[str, Any]


class _Subscribe(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["subscribe"]
    token: str | None = None
    filter: str | None = None
    prefix: str | None = None
    begin: str | None = msgspec.field(default=None, name="from")
    end: str | None = msgspec.field(default=None, name="to")
    match: str | None = None
    sort: str | None = None
    limit: int | None = None
    cursor: str | None = None


_decode = msgspec.json.Decoder(_Subscribe).decode


class Socket:
    """One connection. ``begun`` is called when it has said what it wants, with who it is."""

    def __init__(
        self,
        served: Served,
        view: str,
        headers: Mapping[str, str],
        receive: Callable[[], Awaitable[_Told]],
        send: Callable[[_Told], Awaitable[None]],
        request_id: str,
        *,
        begun: Callable[[Caller | None], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._served = served
        self._view = view
        self._headers = headers
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._begun = begun
        self._failed = failed
        self._cursor: str | None = None
        self.sent_bytes = 0
        self.code = 1005
        """Of the close frame."""

    async def run(self) -> str:
        """Once it is accepted; returns why it ended."""
        try:
            subscriber = await self._asked_for()
            await self._follow(subscriber)
        except Gone:
            return "gone"
        except asyncio.CancelledError:
            raise
        except Exception as error:
            return await self._end(error)
        return "gone"

    async def _asked_for(self) -> Subscriber:
        limits = self._served.limits
        try:
            async with asyncio.timeout(limits.receive_s):
                told = await self._receive()
        except TimeoutError:
            raise FirstMessageLate(
                f"nothing was asked for within {limits.receive_s:g} s",
                hint='send {"type": "subscribe", ...} first',
            ) from None
        if told["type"] == "websocket.disconnect":
            raise Gone
        asked = _read(told.get("text"))
        in_head = bearer(self._headers)
        if in_head is not None and asked.token is not None:
            raise RequestUnfit("there is a token in the first message, and another in the head")
        token = asked.token if in_head is None else in_head
        caller = expect_allowed(self._served, token, self._view)
        self._begun(caller)
        wanted = Wanted(
            *(self._view, asked.filter, asked.prefix, asked.begin, asked.end),
            *(asked.match, asked.sort, asked.limit),
        )
        wanted.expect_fit()
        token_id = caller.token_id if caller else ""
        return Subscriber(
            self._served, wanted, asked.cursor, "websocket", token=token, token_id=token_id, heals=True
        )

    async def _follow(self, subscriber: Subscriber) -> None:
        subscriptions = self._served.subscriptions
        why = "gone"
        subscriptions.enter(subscriber)
        watching = asyncio.create_task(self._watch(subscriber))
        try:
            async with contextlib.aclosing(subscriber.messages()) as messages:
                async for one in messages:
                    await self._tell(one)
                    subscriber.sent(one)
        except Gone:
            raise
        except Exception as error:
            why = why_of(error)
            raise
        finally:
            self._cursor = subscriber.last_cursor
            watching.cancel()
            subscriptions.leave(subscriber, why)

    async def _watch(self, subscriber: Subscriber) -> None:
        told = await self._receive()
        subscriber.end(
            Gone()
            if told["type"] == "websocket.disconnect"
            else RequestUnfit("nothing is sent behind the first message", hint="open another connection")
        )

    async def _tell(self, one: Message) -> None:
        try:
            await self._send({"type": "websocket.send", "text": one.text})
        except OSError as error:
            raise Gone from error
        self.sent_bytes += len(one.data)

    async def _end(self, error: Exception) -> str:
        self._failed(error)
        self.code = close_code(error)
        with contextlib.suppress(Gone, OSError):
            await self._tell(farewell(error, self._cursor, self._request_id))
            await self._send({"type": "websocket.close", "code": self.code})
        return why_of(error)


def _read(text: str | None) -> _Subscribe:
    try:
        if text is None:
            raise ValueError("it is not a text")
        found = _decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestUnfit(
            f"the first message cannot be read: {str(error)[:200]}", hint='send {"type": "subscribe"}'
        ) from None
    for name in ("filter", "prefix", "begin", "end", "match", "sort"):
        if len(getattr(found, name) or "") > _TEXT_CHARS_MAX:
            raise RequestUnfit(f"{name} must be a text of at most {_TEXT_CHARS_MAX} characters")
    if len(found.cursor or "") > CHARS_MAX:
        raise RequestUnfit(f"cursor must be a text of at most {CHARS_MAX} characters")
    return found
