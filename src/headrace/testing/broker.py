"""The embedded broker in a thread of this process, for tests that drive its clock."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from headrace.broker.broker import Broker
from headrace.broker.net.server import Server
from headrace.broker.settings import BrokerSettings
from headrace.clock import Clock

__all__ = ["BrokerThread"]

_START_S_MAX = 60.0
_RETENTION_CHECK_S = 0.1


class BrokerThread:
    """The broker checks retention ten times a second. ``port`` is set after the start."""

    def __init__(self, data: Path, clock: Clock) -> None:
        self._settings = BrokerSettings(data_dir=data, listen_port=0, retention_check_s=_RETENTION_CHECK_S)
        self._clock = clock
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._failure: BaseException | None = None
        self.port = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> BrokerThread:
        self._thread.start()
        if not self._ready.wait(_START_S_MAX) or self._failure is not None:
            raise AssertionError(f"the broker did not start: {self._failure!r}")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S_MAX)
        if self._failure is not None:
            raise AssertionError(f"the broker failed: {self._failure!r}")

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        broker = Broker(self._settings, clock=self._clock)
        server = Server(broker)
        try:
            await server.listen("127.0.0.1", 0)
            broker.set_port(server.port)
            await broker.start()
            self.port = server.port
            self._ready.set()
            await self._stop.wait()
        finally:
            await server.close()
            await broker.stop()
