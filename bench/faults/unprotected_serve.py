"""The server of views with one protection taken out; see ``bench.faults.unprotected``."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from typing import Any

__all__ = [
    "no_back_pressure",
    "no_body_limit",
    "no_escaping",
    "no_escaping_and_no_policy",
    "no_first_message_check",
    "no_forgetting",
    "no_host_check",
    "no_http_sweep",
    "no_message_check",
    "no_message_limit",
    "no_origin_check",
    "no_parameter_check",
    "no_pg_deadlines",
    "no_replay_fence",
    "no_replay_marks",
    "no_requests_ahead_limit",
    "no_resuming",
    "no_socket_limit",
    "no_unsent_limit",
    "no_waiting_for_the_log",
]

_TEXT_NODE = b"M.createTextNode(x)"
_AS_HTML = b'Object.assign(M.createElement("span"),{innerHTML:x})'

_BELIEVED_MAX = 200 << 20
"""As much as this machine can bear."""


def no_back_pressure() -> None:
    """Whoever does not read is sent to all the same, and the process holds what it has not taken."""
    from headrace.serve.subscriptions.socket_connection import SocketConnection

    SocketConnection.pause_writing = lambda self: None  # type: ignore[method-assign]


def no_forgetting() -> None:
    """All that ever came is remembered for those who are behind."""
    from headrace.serve.subscriptions.history import History

    begin = History.__init__

    def boundless(self: History, start: Any, bytes_max: int) -> None:
        begin(self, start, bytes_max * 1_000)

    History.__init__ = boundless  # type: ignore[method-assign]


def no_resuming() -> None:
    """A cursor is taken for where the log is now."""
    from headrace.serve.subscriptions.history import History

    joint = History.joint

    def nothing(self: History, place: Any, until: Any = None) -> Any:
        return joint(self, place, until) if until is not None else ([], self.next)

    History.joint = nothing  # type: ignore[method-assign]


def no_waiting_for_the_log() -> None:
    """The reader of a view's topic ends with the first error of the log."""
    from confluent_kafka import KafkaException

    from headrace.errors import HeadraceError
    from headrace.serve.subscriptions.tail import Tail

    follow = Tail._follow

    def follow_once(self: Tail) -> None:
        try:
            follow(self)
        except (HeadraceError, KafkaException, TimeoutError) as error:
            raise RuntimeError(f"the log fails: {error}") from error

    Tail._follow = follow_once  # type: ignore[method-assign]


def no_replay_marks() -> None:
    """Nobody looks whether a letter was written back before."""
    from headrace.ops.dead.marks import Marks

    Marks.find = lambda self, key: None  # type: ignore[method-assign]


def no_replay_fence() -> None:
    """Every server writes letters back under a name of its own, and stops nobody else."""
    from headrace.client.cluster import Cluster

    make = Cluster.producer

    def unfenced(self: Cluster, extra: Any = None) -> Any:
        told = dict(extra or {})
        if "transactional.id" in told:
            told["transactional.id"] += secrets.token_hex(4)
        return make(self, told)

    Cluster.producer = unfenced  # type: ignore[method-assign]


def no_escaping() -> None:
    """Whatever the page shows as text is HTML."""
    from headrace.serve.page.page_files import PAGE_FILES, PageFile

    name = "vendor/preact.js"
    file = PAGE_FILES[name]
    assert file.body.count(_TEXT_NODE) == 1
    PAGE_FILES[name] = PageFile(file.body.replace(_TEXT_NODE, _AS_HTML), file.media_type)


def no_escaping_and_no_policy() -> None:
    """And the browser is not told to run nothing but the page's own scripts."""
    from headrace.serve.page import page_routes

    no_escaping()
    vars(page_routes)["PAGE_CSP"] = "script-src * 'unsafe-inline'"


def no_origin_check() -> None:
    """Pages of all sites may ask."""
    from headrace.serve.errors import OriginRefused
    from headrace.serve.guard import Guard

    check = Guard._check_source

    def lenient(self: Guard, headers: Any) -> None:
        with contextlib.suppress(OriginRefused):
            check(self, headers)

    Guard._check_source = lenient  # type: ignore[method-assign]


def no_host_check() -> None:
    """Any name may be pointed at the server."""
    from headrace.broker.host_names import HostNames

    HostNames.has = lambda self, hosts: True  # type: ignore[method-assign]


def no_body_limit() -> None:
    """Memory for a body is taken as soon as its length is claimed."""
    from headrace.serve.web import Web

    receive_body = Web._body

    async def believing(self: Web, headers: Any, receive: Any) -> bytes:
        claimed = headers.get("content-length", "0")
        taken = bytearray(b"\1") * min(int(claimed) if claimed.isdecimal() else 0, _BELIEVED_MAX)
        try:
            return await receive_body(self, headers, receive)
        finally:
            del taken

    Web._body = believing  # type: ignore[method-assign]


def no_message_limit() -> None:
    """Memory for a message of PostgreSQL's protocol is taken as soon as its length is claimed."""
    from headrace.serve.pgwire.channel import Channel
    from headrace.serve.pgwire.frames import Fields

    async def body(self: Channel) -> Fields:
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        taken = bytearray(b"\1") * min(max(length, 0), _BELIEVED_MAX)
        found = await self._reader.readexactly(max(length - 4, 0))
        del taken
        return Fields(found)

    async def following(self: Channel, bytes_max: int | None = None) -> tuple[bytes, Fields]:
        return await self._reader.readexactly(1), await body(self)

    Channel.first = body  # type: ignore[method-assign]
    Channel.next = following  # type: ignore[method-assign]


def no_socket_limit() -> None:
    """The first message of a WebSocket may have any size."""
    from headrace.serve.subscriptions import socket

    vars(socket)["FIRST_BYTES_MAX"] = 2**62


def no_requests_ahead_limit() -> None:
    """As many requests of a connection are taken as come, whether those before them are answered or not."""
    from headrace.serve import connection

    vars(connection)["_AHEAD_MAX"] = 10**9


def no_message_check() -> None:
    """Whatever is claimed to be in a message of PostgreSQL's protocol is taken to be there."""
    from headrace.serve.pgwire.frames import Fields

    def unchecked(self: Fields, count: int) -> bytes:
        self._at += count
        return self._body[self._at - count : self._at]

    Fields.take = unchecked  # type: ignore[method-assign]


def no_parameter_check() -> None:
    """A parameter that does not fit goes wrong wherever it likes."""
    from headrace.serve.parameter import Parameter

    Parameter.value = lambda self, given: self.read(given)  # type: ignore[method-assign]


def no_first_message_check() -> None:
    """The first message of a WebSocket goes wrong wherever it likes."""
    from headrace.serve.subscriptions import socket

    vars(socket)["_read"] = lambda text: vars(socket)["_decode"](text)


def no_http_sweep() -> None:
    """Nobody looks whether a caller is slow."""
    from headrace.serve.gate import Gate

    Gate.sweep = lambda self: None  # type: ignore[method-assign]


class _NoTimeouts:
    """asyncio, but nothing is ever late."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def timeout(delay: float | None) -> asyncio.Timeout:
        return asyncio.timeout(None)


def no_pg_deadlines() -> None:
    """In PostgreSQL's protocol, everybody has all the time there is."""
    from headrace.serve.pgwire import channel, session

    for module in (channel, session):
        vars(module)["asyncio"] = _NoTimeouts()


def no_unsent_limit() -> None:
    """What callers have not taken is held, however much it is; pings are answered whether the pongs are read or not."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    from headrace.broker.pressure import Account
    from headrace.serve.subscriptions.socket_connection import SocketConnection

    Account.hold = lambda self, holder, size: None  # type: ignore[method-assign]
    SocketConnection.handle_ping = WebSocketsSansIOProtocol.handle_ping  # type: ignore[method-assign]
