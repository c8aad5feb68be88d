"""A server that runs until a block ends: in this process, or as the command that users run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.serve.http import Http
from faults.wait import until, unwatch, watch_process
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.http.server import Server
from headrace.serve.http.tokens import TokenBook, tokens_path
from headrace.settings import ServeSettings

__all__ = ["COMMAND", "Process", "served", "token_for"]

COMMAND = Path(sys.executable).parent / "headrace"


@dataclasses.dataclass
class ServerLog:
    warnings: list[str] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def served(app: App, cluster: Cluster, data: Path, **settings: Any) -> Iterator[Http]:
    """Serve the app. An internal error of the server fails the test. The client's ``server_log`` has the access log."""
    server_log = ServerLog()
    server = Server(
        app,
        cluster,
        data,
        ServeSettings(**settings),
        "127.0.0.1:0",
        warn=server_log.warnings.append,
        log=server_log.lines.append,
    )
    server.start()
    client = Http(server.port)
    client.server_log = server_log  # type: ignore[attr-defined]
    client.server = server  # type: ignore[attr-defined]
    try:
        yield client
    finally:
        server.stop()
        # pytest shows this if the test fails.
        print(*server_log.warnings, sep="\n")
    assert not server.is_running
    assert server_log.warnings == []


def token_for(data: Path, name: str, *scopes: str) -> str:
    return TokenBook(tokens_path(data)).create(name, scopes, None)[1]


class Process:
    """The ``headrace serve`` command."""

    def __init__(
        self,
        app: str,
        bootstrap: str,
        data: Path,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.errors = data / "serve.err"
        data.mkdir(parents=True, exist_ok=True)
        with self.errors.open("ab") as output:
            self.process = subprocess.Popen(
                [COMMAND, "serve", app, "-b", bootstrap, "--data", data, "--listen", "127.0.0.1:0", *options],
                stdout=subprocess.PIPE,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert " at http://127.0.0.1:" in line, (line, self.errors.read_text())
        watch_process(self.process, "headrace serve", self.errors)
        self.port = int(line.rsplit(":", 1)[1])
        self.http = Http(self.port)

    def kill(self) -> None:
        unwatch(self.process)
        self.process.kill()
        self._wait_for_exit()

    def stop(self, sent_signal: signal.Signals = signal.SIGTERM) -> int:
        unwatch(self.process)
        self.process.send_signal(sent_signal)
        return self._wait_for_exit()

    def _wait_for_exit(self) -> int:
        until(lambda: self.process.poll() is not None, "the server exits", timeout_s=120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.returncode
