"""The least that a server in Python does for a row by its key: uvicorn, one function, sqlite3 in the event loop, JSON.

    python -m bench.serving.bare_http FILE VIEW

It says its port, and ends with its input. It has no limits, checks nothing, says no position, and keeps no log.
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
    names = [one[0] for one in connection.execute(statement, ("",)).description]

    async def answer(scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]) -> None:
        key = scope["path"].rsplit("/", 1)[1]
        found = connection.execute(statement, (key,)).fetchone()
        body = msgspec.json.encode({"row": dict(zip(names, found, strict=True))})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def main() -> None:
    made = socket.create_server(("127.0.0.1", 0), backlog=128)
    # So that asyncio knows that it is TCP, and sends small pieces at once.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())
    config = uvicorn.Config(
        _app(*sys.argv[1:]), http="httptools", lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)

    def end() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end, daemon=True).start()
    print(listening.getsockname()[1], flush=True)
    asyncio.run(server.serve(sockets=[listening]))


if __name__ == "__main__":
    main()
