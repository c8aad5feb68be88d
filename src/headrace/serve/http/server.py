"""The HTTP server: uvicorn in its own thread. The constructor binds the socket.

``stop`` first drains the server: it answers waiting requests immediately, ``/readyz`` fails, and every response closes
its connection. After ``notice_s`` seconds the server accepts no new connections. Then running requests have
``drain_s`` seconds to finish.
"""

from __future__ import annotations

import asyncio
import dataclasses
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
from headrace.broker.net.address import is_loopback, parse_address, split_names
from headrace.client.cluster import Cluster
from headrace.errors import ConfigError, HeadraceError
from headrace.model.errors import needing
from headrace.serve.http.connection import Gate
from headrace.serve.http.guard import Guard
from headrace.serve.http.request_log import traces_of
from headrace.serve.http.tokens import TokenVerifier, tokens_path
from headrace.settings import FlowSettings, ServeSettings

if TYPE_CHECKING:
    from headrace.serve.monitor.runtime_probe import RuntimeProbe

__all__ = ["AddressTaken", "Server"]

_START_S = 30.0
_RESPONSE_S = 5.0
_SWEEP_S = 1.0
_SOCKETS_SPARE = 100
"""How many WebSockets may be open beyond the subscriber limit: some wait for their first message, others are about to
be refused.
"""
_STOP_GRACE_S = 5.0
_CLOSE_FRAMES_S = 1.0


class AddressTaken(ConfigError):
    """The server cannot bind the address, for example because it is in use."""


class Server:
    """``log`` is called with each line of the access log, ``warn`` with warnings for a person. Both can be called from
    any thread. ``probe`` reports on the app that runs in the same process, if any. ``future_ms`` is the setting
    ``flow.future_ms`` of the app's flows.
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
        probe: RuntimeProbe | None = None,
        future_ms: int = FlowSettings().future_ms,
    ) -> None:
        with needing("serve", "starlette"), needing("serve", "uvicorn"), needing("serve", "httptools"):
            import httptools  # noqa: F401
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        self._app = app
        self._cluster = cluster
        self._data = data
        self._settings = serve
        self._stop_s = serve.notice_s + serve.drain_s + _STOP_GRACE_S
        self._warn = warn
        self._log = log
        self._probe = probe
        self._future_ms = future_ms
        self._tokens = TokenVerifier(tokens_path(data))
        host, port = parse_address(listen, "serve.listen")
        self._expect_safe(host)
        self._expect_tokens_behind_proxy(serve)
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._pg_socket: socket.socket | None = None
        self.pg_port = 0
        self.pg_address = ""
        """``host:port``; empty without the PostgreSQL protocol."""
        if serve.pg_listen is not None:
            try:
                self._bind_postgres(serve.pg_listen)
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
        """The error that ended the server's thread, if any."""
        self._thread = threading.Thread(target=self._run, name="serve", daemon=True)

    def _bind_postgres(self, listen: str) -> None:
        with needing("sql", "duckdb"), needing("sql", "pyarrow"):
            import duckdb  # noqa: F401
            import pyarrow  # noqa: F401
        host, port = parse_address(listen, "serve.pg_listen")
        self._expect_safe(host)
        self._pg_socket = _bind(host, port)
        self.pg_port = int(self._pg_socket.getsockname()[1])
        self.pg_address = f"{f'[{host}]' if ':' in host else host}:{self.pg_port}"

    def _expect_safe(self, host: str) -> None:
        if is_loopback(host):
            return
        if not self._tokens.needed:
            raise ConfigError(
                f"other machines can reach {host} but no tokens exist: anyone could read and write",
                hint="create a token first: headrace token create NAME --scope read:view:*;"
                " or listen on 127.0.0.1",
            )
        self._warn(f"clients send tokens to {host} unencrypted: put a TLS proxy in front of it")

    def _expect_tokens_behind_proxy(self, serve: ServeSettings) -> None:
        """Raise if no tokens exist but other machines might reach the server.

        A host or origin that is not local means that a proxy forwards requests of other machines.
        """
        settings = {"serve.hosts": split_names(serve.hosts), "serve.origins": split_names(serve.origins)}
        for setting, names in settings.items():
            for name in names:
                if not is_loopback(_host_of(name)) and not self._tokens.needed:
                    raise ConfigError(
                        f"{setting} allows {name[:100]!r} but no tokens exist: every client that connects through this"
                        " name would be admin",
                        hint="create a token first: headrace token create NAME --scope read:view:*;"
                        " or unset the setting",
                    )

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise ConfigError(
                f"the server did not start within {_START_S:g} s", hint="check that the log is reachable"
            )
        if self.failure is not None:
            raise self.failure

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def responds(self, timeout_s: float = _RESPONSE_S) -> bool:
        """Whether the server's event loop runs a callback within the time."""
        if self._loop is None or not self._thread.is_alive():
            return False
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(timeout_s)

    def request_stop(self) -> None:
        """Begin to drain the server, without waiting."""
        if self._loop is not None and self._thread.is_alive():
            assert self._stopping is not None
            self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self, patience_s: float | None = None) -> None:
        """Drain the server and close all connections, then return. With ``patience_s``, return after that time at the
        latest, because the process ends then.
        """
        self.request_stop()
        self._thread.join(self._stop_s if patience_s is None else patience_s)
        self._socket.close()
        if self._pg_socket is not None:
            self._pg_socket.close()

    # Methods that run in the server's thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        import uvicorn

        from headrace.broker.net.client_limits import Account, Holder
        from headrace.serve.features import Features
        from headrace.serve.http.application import HttpApplication
        from headrace.serve.http.connection import Connection
        from headrace.serve.http.context import ServeContext
        from headrace.serve.http.request_log import AccessLog, RequestMetrics
        from headrace.serve.subscribe.web_socket import FIRST_BYTES_MAX, WebSocketEndpoint
        from headrace.serve.subscribe.web_socket_connection import WebSocketConnection

        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        settings = self._settings
        context = ServeContext.of(
            *(self._app, self._cluster, self._data, settings),
            traces=traces_of(os.environ, self._app.name, self._warn),
            access_log=AccessLog(self._log),
            report=self._report,
            future_ms=self._future_ms,
        )
        limits, clock = context.limits, context.clock
        metrics = RequestMetrics()
        unsent: Account[Holder] = Account("answers", limits.unsent_bytes_max)
        gate = Gate(limits, metrics, clock, unsent)
        sockets = Gate(
            dataclasses.replace(limits, connections_max=limits.subscribers_max + _SOCKETS_SPARE),
            *(metrics, clock, unsent),
        )
        features = Features(
            *(context, settings, self._tokens, unsent, self._probe),
            http_metrics=lambda out: metrics.write(
                out, gate.count, features.waiter.waiters, context.executor.under_way
            ),
        )
        features.start()
        application = HttpApplication(
            *(context, self._tokens, self._guard, features.handlers(), metrics),
            websocket=WebSocketEndpoint(context, features.subscriptions, self._guard),
        )
        # uvicorn's own log lines would contain paths and queries.
        logging.getLogger("uvicorn").addHandler(logging.NullHandler())
        logging.getLogger("uvicorn").propagate = False
        config = uvicorn.Config(
            application,
            http=functools.partial(Connection, gate),  # type: ignore[arg-type]
            ws=functools.partial(WebSocketConnection, sockets),  # type: ignore[arg-type]
            ws_max_size=FIRST_BYTES_MAX,
            # Compression needs memory per connection, and would compress each shared message once per subscriber.
            ws_per_message_deflate=False,
            # A slow subscriber answers pings late, behind its unread data; the send limit detects it instead.
            ws_ping_interval=None,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=limits.idle_s,
            timeout_graceful_shutdown=limits.drain_s,
            backlog=min(limits.connections_max, 1_024),
        )
        server = uvicorn.Server(config)
        if self._pg_socket is not None:
            await features.sql.listen(self._pg_socket)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            self._ready.set()
            sweeping = asyncio.create_task(_sweep((gate, sockets), limits.receive_s))
            stopping = asyncio.create_task(self._stopping.wait())
            # Without the sweep the server would not close slow connections, so a failed sweep stops the server.
            await asyncio.wait({stopping, serving, sweeping}, return_when=asyncio.FIRST_COMPLETED)
            features.drain()
            if stopping.done():
                await asyncio.sleep(settings.notice_s)
            await features.subscriptions.wait_until_ended(_CLOSE_FRAMES_S)
            server.should_exit = True
            await asyncio.gather(serving, features.sql.drain_connections(limits.drain_s))
            if sweeping.done():
                sweeping.result()
            sweeping.cancel()
            stopping.cancel()
        finally:
            await features.close()

    def _report(self, request_id: str, error: BaseException) -> None:
        """Warn about an unexpected error, with its traceback. The client receives only the request id."""
        trace = "" if isinstance(error, HeadraceError) else "\n" + "".join(traceback.format_exception(error))
        self._warn(f"request {request_id}: {type(error).__name__}: {error}{trace}")


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


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise AddressTaken(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="another process might use the port; choose another port, or 0 for any free port",
        ) from error
    # asyncio sets TCP_NODELAY only if the socket's protocol is TCP. Without TCP_NODELAY the second packet of a response
    # waits 40 ms for the acknowledgement of the first.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())
