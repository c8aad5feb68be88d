"""The two ends of a connection, as messages: what comes in has its size and its time, what goes out has its time."""

from __future__ import annotations

import asyncio
import struct

from headrace.serve.limits import Limits
from headrace.serve.pgwire import frames
from headrace.serve.pgwire.frames import Fields, Unfit

__all__ = ["Channel", "Ended"]

_STARTUP_BYTES_MAX = 10_000


class Ended(Exception):
    """The connection is over: why, and what is said before."""

    def __init__(self, why: str, told: bytes) -> None:
        super().__init__(why)
        self.why = why
        self.told = told


class Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        peer = writer.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""

    @property
    def is_gone(self) -> bool:
        """Whether the other side says nothing any more, and all that it said was read."""
        return self._reader.at_eof()

    async def first(self) -> Fields:
        """A message of the begin, which has no letter."""
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        if not 8 <= length <= _STARTUP_BYTES_MAX:
            raise Unfit(f"a first message of {length} bytes")
        return Fields(await self._reader.readexactly(length - 4))

    async def next(self, bytes_max: int | None = None) -> tuple[bytes, Fields]:
        """Wait for a message until the connection counts as idle; from its first byte on it must come in time."""
        idle_s = self._limits.pg_idle_s
        try:
            async with asyncio.timeout(idle_s):
                letter = await self._reader.readexactly(1)
        except TimeoutError:
            told = f"no message came for {idle_s:g} s"
            hint = "connect again, or raise serve.pg_idle_ms"
            raise Ended("idle", frames.error("57P05", told, hint=hint, fatal=True)) from None
        most = self._limits.body_bytes_max if bytes_max is None else bytes_max
        async with asyncio.timeout(self._limits.receive_s):
            (length,) = struct.unpack(">i", await self._reader.readexactly(4))
            if not 4 <= length <= most:
                raise Unfit(f"a message of {length} bytes, and at most {most} are read")
            return letter, Fields(await self._reader.readexactly(length - 4))

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            async with asyncio.timeout(self._limits.send_s):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionError from None

    def drop(self) -> None:
        """At once, whatever has not been sent."""
        self._writer.transport.abort()
