"""Reads and writes the messages of one connection, and handles its startup.

Limits the size of incoming messages, and the time to receive and to send a message. At startup, the server declines
TLS, and the client sends a user name and its token as the password.

SSL or GSS request   the server replies N (declined), and the client sends another startup message
cancel request       cancels the statement of another connection; the server sends no reply
startup              must use protocol 3; the server declines versions after 3.0 and all extensions
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.net.client_limits import Account, Holder
from headrace.serve.http.limits import Limits
from headrace.serve.http.tokens import LOCAL_ADMIN, READ_VIEW, Caller, TokenVerifier
from headrace.serve.sql.wire import frames
from headrace.serve.sql.wire.context import WireContext
from headrace.serve.sql.wire.frames import Fields, ProtocolViolation

__all__ = ["Channel", "ConnectionEnded", "Login", "start_up"]

_STARTUP_BYTES_MAX = 10_000


class ConnectionEnded(Exception):
    """Ends the connection. ``why`` is the reason in metrics; ``message`` is the last message to the client."""

    def __init__(self, why: str, message: bytes) -> None:
        super().__init__(why)
        self.why = why
        self.message = message


class Channel:
    """``unsent`` counts the bytes that clients have not read yet. If the server closes a connection because of
    these bytes, it calls ``on_evict``.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: Limits,
        unsent: Account[Holder],
        on_evict: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._unsent = unsent
        self._on_evict = on_evict
        peer = writer.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""

    @property
    def is_disconnected(self) -> bool:
        """Whether the client has closed its side, and the server has read everything that the client sent."""
        return self._reader.at_eof()

    async def read_startup(self) -> Fields:
        """Read a startup message, which has no type byte."""
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        if not 8 <= length <= _STARTUP_BYTES_MAX:
            raise ProtocolViolation(f"invalid length of a startup message: {length} bytes")
        return Fields(await self._reader.readexactly(length - 4))

    async def read_message(self, bytes_max: int | None = None) -> tuple[bytes, Fields]:
        """Read a message. The idle timeout applies to its first byte, the receive timeout to the rest."""
        idle_s = self._limits.pg_idle_s
        try:
            async with asyncio.timeout(idle_s):
                letter = await self._reader.readexactly(1)
        except TimeoutError:
            reason = f"the connection was idle for {idle_s:g} s"
            hint = "reconnect, or raise serve.pg_idle_ms"
            raise ConnectionEnded("idle", frames.error("57P05", reason, hint=hint, fatal=True)) from None
        length_max = self._limits.body_bytes_max if bytes_max is None else bytes_max
        async with asyncio.timeout(self._limits.receive_s):
            (length,) = struct.unpack(">i", await self._reader.readexactly(4))
            if not 4 <= length <= length_max:
                raise ProtocolViolation(f"invalid length of a message: {length} bytes (limit {length_max})")
            return letter, Fields(await self._reader.readexactly(length - 4))

    async def send(self, data: bytes) -> None:
        transport = self._writer.transport
        try:
            self._writer.write(data)
            self._unsent.set_usage(self, transport.get_write_buffer_size())
            async with asyncio.timeout(self._limits.send_s):
                await self._writer.drain()
        except TimeoutError:
            transport.abort()
            raise ConnectionError from None
        finally:
            # The remaining bytes fit into the transport's buffer limit and do not count.
            self._unsent.set_usage(self, 0)

    def evict(self, reason: str) -> None:
        self._on_evict()
        self.drop()

    def drop(self) -> None:
        """Close immediately and discard unsent data."""
        self._writer.transport.abort()


_PASSWORD_BYTES_MAX = 1_000
_NAME_CHARS_MAX = 63
_EXTENSION = "_pq_."


@dataclass(frozen=True, slots=True)
class Login:
    """The credentials of a connection. The server checks them again for each statement, because someone can revoke the
    token, or create the server's first token, which makes tokens mandatory.
    """

    user: str
    database: str
    token: str

    def caller(self, tokens: TokenVerifier) -> Caller:
        without_token = None if tokens.are_needed() else LOCAL_ADMIN
        caller = tokens.caller(self.token) if self.token else without_token
        if caller is None or not caller.scopes:
            raise ConnectionEnded(
                "login",
                frames.error(
                    *("28P01", "the token is unknown, revoked or expired"),
                    hint="use a token as the password: headrace token create",
                    fatal=True,
                ),
            )
        if not caller.may_for_some_name(READ_VIEW):
            reason = f"SQL needs the scope {READ_VIEW}, and the token does not have it"
            hint = f"create a token with the scope: headrace token create NAME --scope {READ_VIEW}:VIEW"
            raise ConnectionEnded("scope", frames.error("42501", reason, hint=hint, fatal=True))
        return caller


async def start_up(
    channel: Channel, context: WireContext, cancel: Callable[[int, int], None]
) -> Login | None:
    """Read startup messages. Return the login, or None after a cancel request."""
    for _ in range(3):
        body = await channel.read_startup()
        code = body.integer()
        if code in (frames.SSL, frames.GSS):
            await channel.send(b"N")
            continue
        if code == frames.CANCEL:
            cancel(body.integer(), body.integer())
            return None
        if code >> 16 != 3:
            raise ProtocolViolation(f"protocol {code >> 16}.{code & 0xFFFF} is not supported, only 3.0")
        return await _log_in(channel, context, body, code)
    raise ProtocolViolation("the client requested encryption three times")


async def _log_in(channel: Channel, context: WireContext, body: Fields, code: int) -> Login:
    parameters: dict[str, str] = {}
    while name := body.text():
        parameters[name] = body.text()
    extensions = [name for name in parameters if name.startswith(_EXTENSION)]
    if code != frames.PROTOCOL or extensions:
        await channel.send(frames.negotiate_version(extensions))
    token = ""
    if context.tokens.are_needed():
        await channel.send(frames.message(b"R", struct.pack(">i", 3)))
        letter, raw = await channel.read_message(_PASSWORD_BYTES_MAX)
        token = raw.text() if letter == b"p" else ""
    return Login(
        parameters.get("user", "")[:_NAME_CHARS_MAX] or "headrace",
        parameters.get("database", "")[:_NAME_CHARS_MAX] or context.serve.app.name,
        token,
    )
