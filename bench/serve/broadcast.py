"""The minimum that a server does for many subscribers: ``websockets`` and its broadcast, with the same frame for all.

    python -m bench.serve.broadcast RATE FRAME_MS FRAME_BYTES

Changes are due at fixed times. Each frame has the changes since the previous frame, padded to FRAME_BYTES. It prints
its port, and exits when its standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

from websockets.asyncio.server import ServerConnection, broadcast, serve

from bench.serve.ticker import tick

__all__ = ["main"]


async def _run(rate: int, frame_s: float, frame_bytes: int, end: asyncio.Event) -> None:
    connections: set[ServerConnection] = set()

    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send('{"type":"snapshot","rows":[],"last":true}')
        connections.add(connection)
        await connection.wait_closed()
        connections.discard(connection)

    async with serve(handle, "127.0.0.1", 0, compression=None, backlog=1_024) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        begin_us, step_us, number = time.monotonic_ns() // 1_000, 1_000_000 // rate, 0
        next_s = time.monotonic()
        while not end.is_set():
            next_s += frame_s
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            now_us = time.monotonic_ns() // 1_000
            rows = []
            while begin_us + number * step_us <= now_us:
                rows.append(tick(number, begin_us + number * step_us))
                number += 1
            text = json.dumps({"type": "changes", "last": True, "rows": rows}, separators=(",", ":"))
            broadcast(connections, f"{text[:-1]}{' ' * max(0, frame_bytes - len(text))}}}")


async def _main() -> None:
    rate, frame_ms, frame_bytes = map(int, sys.argv[1:])
    end, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(end.set)

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    await _run(rate, frame_ms / 1_000, frame_bytes, end)


def main() -> None:
    asyncio.run(_main())


if __name__ == "__main__":
    main()
