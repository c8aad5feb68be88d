"""How the server listens."""

from __future__ import annotations

import asyncio
import socket

from headrace.serve.server import _bound


async def test_what_is_accepted_sends_small_pieces_at_once() -> None:
    """Otherwise the body of an answer waits until its head is acknowledged."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made = writer.get_extra_info("socket")
        accepted.set_result(made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = _bound("127.0.0.1", 0)
    async with await asyncio.start_server(take, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await accepted
        writer.close()
        await writer.wait_closed()
