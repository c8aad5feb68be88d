"""The port at which a running app answers Prometheus, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.address import is_loopback, parse_address
from headrace.broker.metrics_port import MetricsPort
from headrace.clock import SystemClock
from headrace.errors import ConfigError
from headrace.runtime.metrics_page import metrics_page
from headrace.views.follower import Follower

if TYPE_CHECKING:
    from headrace.flow.runner import FlowRunner
    from headrace.ops.alerts.watch import AlertWatch

__all__ = ["RunMetrics"]

_STOP_S = 5.0


class RunMetrics:
    def __init__(
        self,
        app: str,
        flows: Sequence[FlowRunner],
        followers: Sequence[Follower],
        alerts: AlertWatch | None,
        hosts: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._flows = flows
        self._followers = followers
        self._alerts = alerts
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._port = MetricsPort(self._page, SystemClock(), hosts=hosts)
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics", daemon=True)

    def start(self, listen: str, *, anyone: bool) -> None:
        host, port = parse_address(listen, "metrics.listen")
        if not is_loopback(host) and not anyone:
            raise ConfigError(
                f"{host} can be reached from other machines, and metrics name every flow, view and group",
                hint="listen on 127.0.0.1, or say that anyone may read with metrics.anyone_may_read = true",
            )
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._port.listen(host, port), self._loop).result()
        except OSError as error:
            self.close()
            raise ConfigError(
                f"{host}:{port} cannot be listened on: {error.strerror or error}",
                hint="another process may hold the port; give another one with --metrics HOST:PORT, or port 0",
            ) from error
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self._port.port}/metrics"

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_STOP_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)
            self._loop.close()

    async def _end(self) -> None:
        await self._port.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _page(self) -> bytes:
        return metrics_page(self._app, self._flows, self._followers, self._alerts)
