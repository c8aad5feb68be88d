"""Requests that come while a connection is held, because as many wait as may."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from headrace.clock import SystemClock
from headrace.serve.connection import _AHEAD_MAX, Connection
from headrace.serve.counts import Counts
from headrace.serve.gate import Gate
from headrace.serve.limits import Limits


def _request(number: int) -> bytes:
    return f"GET /{number} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class _Late(Connection):
    """More bytes come after an answer has made room, and before the next turn of the event loop."""

    late = b""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._unparsed and len(self.pipeline) < _AHEAD_MAX:
            late, self.late = self.late, b""
            self.data_received(late)


async def test_a_connection_reads_on_after_bytes_that_came_while_it_was_held() -> None:
    released = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await released.wait()
        path = scope["path"].encode()
        headers = [(b"content-length", str(len(path)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": path})

    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    gate, state, accepted = Gate(Limits(), Counts(), SystemClock()), ServerState(), []

    def connect() -> Connection:
        accepted.append(_Late(gate, config=config, server_state=state, app_state={}))
        return accepted[0]

    server = await loop.create_server(connect, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    answered: list[int] = []

    async def read_until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(answered) < count:
                head = await reader.readuntil(b"\r\n\r\n")
                (length,) = re.findall(rb"content-length: (\d+)", head)
                answered.append(int((await reader.readexactly(int(length)))[1:]))

    try:
        writer.write(b"".join(map(_request, range(40))))
        while not accepted or not accepted[0].flow.read_paused:
            await asyncio.sleep(0.001)
        accepted[0].late = b"".join(map(_request, range(40, 45)))
        released.set()
        await read_until(45)
        writer.write(_request(45))
        await read_until(46)
    finally:
        writer.close()
        server.close()
        await writer.wait_closed()
    assert answered == [*range(46)]
    assert accepted[0].late == b""
