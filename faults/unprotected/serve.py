"""``headrace serve`` with one protection removed; see ``faults.unprotected.registry``."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from pathlib import Path
from typing import Any

from faults.patch import patch

__all__ = [
    "no_back_pressure",
    "no_body_limit",
    "no_escaping",
    "no_escaping_and_no_policy",
    "no_first_message_check",
    "no_forgetting",
    "no_host_check",
    "no_http_sweep",
    "no_letter_states",
    "no_message_check",
    "no_message_limit",
    "no_origin_check",
    "no_page_file_allowlist",
    "no_parameter_check",
    "no_pg_deadlines",
    "no_replay_fence",
    "no_requests_ahead_limit",
    "no_resuming",
    "no_socket_limit",
    "no_unsent_limit",
    "no_waiting_for_the_log",
]

_TEXT_NODE = b"M.createTextNode(x)"
_AS_HTML = b'Object.assign(M.createElement("span"),{innerHTML:x})'

_ALLOCATED_MAX = 200 << 20
"""The largest allocation, so that the machine does not run out of memory."""


def no_back_pressure() -> None:
    """The server sends everything to clients that do not read, and buffers it in memory."""
    from headrace.serve.subscribe.web_socket_connection import WebSocketConnection

    patch(WebSocketConnection, "pause_writing", lambda self: None)


def no_forgetting() -> None:
    """All changes are retained for subscribers that are behind."""
    from headrace.serve.subscribe.history import History

    begin = History.__init__

    def unlimited(self: History, start: Any, bytes_max: int) -> None:
        begin(self, start, bytes_max * 1_000)

    patch(History, "__init__", unlimited)


def no_resuming() -> None:
    """Every cursor resumes at the current end of the log."""
    from headrace.serve.subscribe.history import History

    align = History.align

    def align_at_end(self: History, log_position: Any, until: Any = None) -> Any:
        return align(self, log_position, until) if until is not None else ([], self.next)

    patch(History, "align", align_at_end)


def no_waiting_for_the_log() -> None:
    """The reader of a view's topic stops at the first error of the log."""
    from confluent_kafka import KafkaException

    from headrace.errors import HeadraceError
    from headrace.serve.subscribe.tail import Tail

    follow = Tail._follow

    def follow_once(self: Tail) -> None:
        try:
            follow(self)
        except (HeadraceError, KafkaException, TimeoutError) as error:
            raise RuntimeError(f"reading the log failed: {error}") from error

    patch(Tail, "_follow", follow_once)


def no_letter_states() -> None:
    """A dead letter is replayed without a check for an earlier replay."""
    from headrace.ops.dead import letter_index

    patch(letter_index, "parse_state_record", lambda value: None)
    patch(letter_index.LetterIndex, "add_states", lambda self, states, end: None)


def no_replay_fence() -> None:
    """Every server replays dead letters with its own transactional id, and so does not fence the others."""
    from headrace.client.cluster import Cluster

    create = Cluster.producer

    def unfenced(self: Cluster, extra: Any = None) -> Any:
        properties = dict(extra or {})
        if "transactional.id" in properties:
            properties["transactional.id"] += secrets.token_hex(4)
        return create(self, properties)

    patch(Cluster, "producer", unfenced)


def no_escaping() -> None:
    """The web UI treats all text as HTML."""
    from headrace.serve.page.assets import PAGE_FILES, Asset

    name = "vendor/preact.js"
    file = PAGE_FILES[name]
    assert file.body.count(_TEXT_NODE) == 1
    PAGE_FILES[name] = Asset(file.body.replace(_TEXT_NODE, _AS_HTML), file.media_type)


def no_escaping_and_no_policy() -> None:
    """The web UI treats all text as HTML, and its content security policy allows scripts from everywhere."""
    from headrace.serve.page import page

    no_escaping()
    patch(page, "PAGE_CSP", "script-src * 'unsafe-inline'")


def no_origin_check() -> None:
    """The server accepts requests from web pages of all sites."""
    from headrace.serve.errors import OriginRefused
    from headrace.serve.http.guard import Guard

    check = Guard._check_source

    def ignore_refusals(self: Guard, headers: Any) -> None:
        with contextlib.suppress(OriginRefused):
            check(self, headers)

    patch(Guard, "_check_source", ignore_refusals)


def no_host_check() -> None:
    """The server responds to any host name."""
    from headrace.broker.net.address import HostNames

    patch(HostNames, "has", lambda self, hosts: True)


def no_body_limit() -> None:
    """Memory for a body is allocated as soon as its length is claimed."""
    from headrace.serve.http.application import HttpApplication

    receive_body = HttpApplication._body

    async def allocate_claimed_bytes(self: HttpApplication, headers: Any, receive: Any) -> bytes:
        claimed = headers.get("content-length", "0")
        allocated = bytearray(b"\1") * min(int(claimed) if claimed.isdecimal() else 0, _ALLOCATED_MAX)
        try:
            return await receive_body(self, headers, receive)
        finally:
            del allocated

    patch(HttpApplication, "_body", allocate_claimed_bytes)


def no_message_limit() -> None:
    """Memory for a message of PostgreSQL's protocol is allocated as soon as its length is claimed."""
    from headrace.serve.sql.wire.channel import Channel
    from headrace.serve.sql.wire.frames import Fields

    async def body(self: Channel) -> Fields:
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        allocated = bytearray(b"\1") * min(max(length, 0), _ALLOCATED_MAX)
        content = await self._reader.readexactly(max(length - 4, 0))
        del allocated
        return Fields(content)

    async def following(self: Channel, bytes_max: int | None = None) -> tuple[bytes, Fields]:
        return await self._reader.readexactly(1), await body(self)

    patch(Channel, "read_startup", body)
    patch(Channel, "read_message", following)


def no_socket_limit() -> None:
    """The first message of a WebSocket can have any size."""
    from headrace.serve.subscribe import web_socket

    patch(web_socket, "FIRST_BYTES_MAX", 2**62)


def no_requests_ahead_limit() -> None:
    """A connection can pipeline any number of requests."""
    from headrace.serve.http import connection

    patch(connection, "_PIPELINED_MAX", 10**9)


def no_message_check() -> None:
    """The claimed contents of a message of PostgreSQL's protocol are trusted."""
    from headrace.serve.sql.wire.frames import Fields

    def unchecked(self: Fields, count: int) -> bytes:
        self._at += count
        return self._body[self._at - count : self._at]

    patch(Fields, "take", unchecked)


def no_parameter_check() -> None:
    """Parameters are not validated, so an invalid one can raise any exception."""
    from headrace.serve.http.route import Parameter

    patch(Parameter, "value", lambda self, raw: self.parse(raw))


def no_first_message_check() -> None:
    """The first message of a WebSocket is not validated, so an invalid one can raise any exception."""
    from headrace.serve.subscribe import web_socket

    patch(web_socket, "_parse_first_message", web_socket._decode)


def no_page_file_allowlist() -> None:
    """The server reads a file of the web UI from any path that a request names, such as ``../x``."""
    from headrace.serve.page import page
    from headrace.serve.page.assets import Asset

    folder = Path(page.__file__).parent / "files"
    respond = page._page_response

    async def anywhere(feature: Any, request: Any) -> Any:
        body = (folder / request.path_values["file"]).read_bytes()
        return respond(request, Asset(body, "text/plain"))

    (route,) = (route for route in page.Page.routes if "{file:path}" in route.path)
    assert hasattr(route, "handle")
    object.__setattr__(route, "handle", anywhere)


def no_http_sweep() -> None:
    """Slow clients stay connected."""
    from headrace.serve.http.connection import Gate

    patch(Gate, "sweep", lambda self: None)


class _NoTimeouts:
    """asyncio without timeouts."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def timeout(delay: float | None) -> asyncio.Timeout:
        return asyncio.timeout(None)


def no_pg_deadlines() -> None:
    """PostgreSQL's protocol has no deadlines."""
    from headrace.serve.sql.wire import channel, session

    for module in (channel, session):
        patch(module, "asyncio", _NoTimeouts())


def no_unsent_limit() -> None:
    """Unread responses are buffered without a limit. Pings get pongs even if the client does not read them."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    from headrace.broker.net.client_limits import Account
    from headrace.serve.subscribe.web_socket_connection import WebSocketConnection

    patch(Account, "set_usage", lambda self, holder, size: None)
    patch(WebSocketConnection, "handle_ping", WebSocketsSansIOProtocol.handle_ping)
