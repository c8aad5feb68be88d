"""The server: uvicorn in a thread of its own, on an address that it may listen on, until it is asked to stop.

Stopping drains: nobody waits any more, ``/readyz`` says that it is about to stop, every answer ends its connection;
then, at once or after a notice for whoever sends requests here, no new connections; what is being answered is, within
a few seconds.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import socket
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.broker.address import is_loopback, parse_address
from headrace.broker.host_names import split_names
from headrace.client.cluster import Cluster
from headrace.errors import ConfigError, HeadraceError
from headrace.model.extras import needing
from headrace.serve.gate import Gate
from headrace.serve.guard import Guard
from headrace.serve.tokens import Tokens, tokens_path
from headrace.serve.traces import traces_of
from headrace.settings import ServeSettings

if TYPE_CHECKING:
    from headrace.serve.live import Live
    from headrace.serve.pgwire.listener import Listener
    from headrace.serve.served import Served

__all__ = ["AddressTaken", "Server"]

_START_S = 30.0
_SWEEP_S = 1.0
_STOP_GRACE_S = 5.0
_FAREWELL_S = 1.0


class AddressTaken(ConfigError):
    """Somebody else listens there, or nobody may."""


class Server:
    """``log`` takes the lines of the access log, ``warn`` what a person must hear of; from any thread. ``live`` is
    whoever runs the parts of the app, where that is beside it.
    """

    def __init__(
        self,
        app: App,
        cluster: Cluster,
        data: Path,
        serve: ServeSettings,
        listen: str,
        *,
        warn: Callable[[str], None],
        log: Callable[[str], None] | None = None,
        live: Live | None = None,
    ) -> None:
        with needing("serve", "starlette"), needing("serve", "uvicorn"), needing("serve", "httptools"):
            import httptools  # noqa: F401
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        self._app = app
        self._cluster = cluster
        self._data = data
        self._given = serve
        self._stop_s = serve.notice_s + serve.drain_s + _STOP_GRACE_S
        self._warn = warn
        self._log = log
        self._live = live
        self._tokens = Tokens(tokens_path(data))
        host, port = parse_address(listen, "serve.listen")
        self._expect_safe(host)
        self._expect_tokens_behind_proxy(serve)
        self._socket = _bound(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._pg_socket: socket.socket | None = None
        self.pg_port = 0
        self.pg_address = ""
        """As ``host:port``; empty without PostgreSQL's protocol."""
        if serve.pg_listen is not None:
            try:
                self._listen_for_postgres(serve.pg_listen)
            except BaseException:
                self._socket.close()
                raise
        self._guard = Guard(
            [host, *split_names(serve.hosts)], split_names(serve.origins), self._tokens.are_needed
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self.failure: BaseException | None = None
        """What ended it, where it ended by itself."""
        self._thread = threading.Thread(target=self._run, name="serve", daemon=True)

    def _listen_for_postgres(self, listen: str) -> None:
        with needing("sql", "duckdb"), needing("sql", "pyarrow"):
            import duckdb  # noqa: F401
            import pyarrow  # noqa: F401
        host, port = parse_address(listen, "serve.pg_listen")
        self._expect_safe(host)
        self._pg_socket = _bound(host, port)
        self.pg_port = int(self._pg_socket.getsockname()[1])
        self.pg_address = f"{f'[{host}]' if ':' in host else host}:{self.pg_port}"

    def _expect_safe(self, host: str) -> None:
        if is_loopback(host):
            return
        if not self._tokens.needed:
            raise ConfigError(
                f"{host} can be reached from other machines, and there are no tokens: anyone could read and write",
                hint="make one first: headrace token create NAME --scope read:view:*; or listen on 127.0.0.1",
            )
        self._warn(f"tokens travel over {host} as they are: put TLS in front of it")

    def _expect_tokens_behind_proxy(self, serve: ServeSettings) -> None:
        """Whoever names other hosts or origins has something in front of it that lets others in."""
        named = {"serve.hosts": split_names(serve.hosts), "serve.origins": split_names(serve.origins)}
        for setting, texts in named.items():
            for text in texts:
                if not is_loopback(_host_of(text)) and not self._tokens.needed:
                    raise ConfigError(
                        f"{setting} names {text[:100]!r}, and there are no tokens: everyone behind it would be admin",
                        hint="create one first: headrace token create NAME --scope read:view:*; or unset the setting",
                    )

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise ConfigError(f"the server has not begun within {_START_S:g} s", hint="is the log reachable?")
        if self.failure is not None:
            raise self.failure

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Drains, and returns when all is closed."""
        if self._loop is not None and self._thread.is_alive():
            loop, stopping = self._loop, self._stopping
            assert stopping is not None
            loop.call_soon_threadsafe(stopping.set)
        self._thread.join(self._stop_s)
        self._socket.close()
        if self._pg_socket is not None:
            self._pg_socket.close()

    # In the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        import uvicorn

        from headrace.serve.connection import Connection
        from headrace.serve.served import Served
        from headrace.serve.subscriptions.socket import FIRST_BYTES_MAX
        from headrace.serve.subscriptions.socket_connection import SocketConnection
        from headrace.serve.web import Web

        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        traces = traces_of(os.environ, self._app.name, self._warn)
        served = Served(
            self._app,
            self._cluster,
            self._data,
            self._given,
            self._tokens,
            log=self._log,
            traces=traces,
            live=self._live,
            report=self._report,
        )
        served.observed.start()
        # Its own lines would have paths and queries in them; ours have not.
        logging.getLogger("uvicorn").addHandler(logging.NullHandler())
        logging.getLogger("uvicorn").propagate = False
        config = uvicorn.Config(
            Web(served, self._guard, self._report),
            http=functools.partial(Connection, served.gate),  # type: ignore[arg-type]
            ws=functools.partial(SocketConnection, served.sockets),  # type: ignore[arg-type]
            ws_max_size=FIRST_BYTES_MAX,
            # Each would need memory of its own for it, and what is written once be packed a thousand times.
            ws_per_message_deflate=False,
            # Who is slow answers a ping late, behind all that it has not read: it is told by other means.
            ws_ping_interval=None,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=served.limits.idle_s,
            timeout_graceful_shutdown=served.limits.drain_s,
            backlog=min(served.limits.connections_max, 1_024),
        )
        server = uvicorn.Server(config)
        wire = await self._listening(served)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            self._ready.set()
            sweeping = asyncio.create_task(_sweep((served.gate, served.sockets), served.limits.receive_s))
            stopping = asyncio.create_task(self._stopping.wait())
            # A sweep that fails would let connections pile up: that ends it too.
            await asyncio.wait({stopping, serving, sweeping}, return_when=asyncio.FIRST_COMPLETED)
            served.drain()
            if stopping.done():
                await asyncio.sleep(self._given.notice_s)
            await served.subscriptions.drained(_FAREWELL_S)
            server.should_exit = True
            await asyncio.gather(serving, *([wire.drain(served.limits.drain_s)] if wire else []))
            if sweeping.done():
                sweeping.result()
            sweeping.cancel()
            stopping.cancel()
        finally:
            if wire is not None:
                await wire.close()
            await served.sql.close()
            await served.console.close()
            served.close()

    async def _listening(self, served: Served) -> Listener | None:
        if self._pg_socket is None:
            return None
        from headrace.serve.pgwire.listener import Listener
        from headrace.serve.served import ANYBODY

        made = Listener(served, ANYBODY, lambda error: self._report("in PostgreSQL's protocol", error))
        await made.start(self._pg_socket)
        return made

    def _report(self, request_id: str, error: BaseException) -> None:
        """Faults of ours with where they happened: the caller is told nothing of it."""
        ours = "" if isinstance(error, HeadraceError) else "\n" + "".join(traceback.format_exception(error))
        self._warn(f"request {request_id}: {type(error).__name__}: {error}{ours}")


async def _sweep(gates: Sequence[Gate], receive_s: float) -> None:
    while True:
        for gate in gates:
            gate.sweep()
        await asyncio.sleep(min(_SWEEP_S, receive_s / 4))


def _host_of(name_or_origin: str) -> str:
    if "//" not in name_or_origin:
        return name_or_origin.strip("[]")
    try:
        return urllib.parse.urlsplit(name_or_origin).hostname or ""
    except ValueError:
        return ""


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise AddressTaken(
            f"{host}:{port} cannot be listened on: {error.strerror or error}",
            hint="another process may hold the port; give another one, or port 0",
        ) from error
    # Only of a socket that says that it is TCP does asyncio send small pieces at once; the second piece of an answer
    # would otherwise wait for the first to be acknowledged, which takes 40 ms.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=made.detach())
