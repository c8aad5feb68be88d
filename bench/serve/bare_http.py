"""The minimum that a Python server does for a row by key: uvicorn, one function, sqlite3 in the event loop, JSON.

    python -m bench.serve.bare_http FILE VIEW

It prints its port, and exits when its standard input closes. It has no limits, checks, position or log.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import uvicorn

__all__ = ["main"]

Message = MutableMapping[str, Any]


def _app(file: str, view: str) -> Callable[..., Awaitable[None]]:
    connection = sqlite3.connect(
        f"file:{file}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    statement = f"SELECT * FROM {view} WHERE order_id = ?"
    names = [column[0] for column in connection.execute(statement, ("",)).description]

    async def respond(scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]) -> None:
        key = scope["path"].rsplit("/", 1)[1]
        row = connection.execute(statement, (key,)).fetchone()
        body = msgspec.json.encode({"row": dict(zip(names, row, strict=True))})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return respond


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    # With this protocol number, asyncio recognises TCP and sends small pieces immediately.
    listening = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach()
    )
    config = uvicorn.Config(
        _app(*sys.argv[1:]), http="httptools", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    print(listening.getsockname()[1], flush=True)
    asyncio.run(server.serve(sockets=[listening]))


if __name__ == "__main__":
    main()
