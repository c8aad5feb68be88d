"""A server at work for as long as a block lasts: in this process, or as its users start it."""

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

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.server import Server
from headrace.serve.tokens import TokenBook, tokens_path
from headrace.settings import ServeSettings
from tests.serve.http import Http
from tests.support.waiting import until, unwatch, watch_process

__all__ = ["COMMAND", "Process", "served", "token_for"]

COMMAND = Path(sys.executable).parent / "headrace"


@dataclasses.dataclass
class Heard:
    warnings: list[str] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def served(app: App, cluster: Cluster, data: Path, **settings: Any) -> Iterator[Http]:
    """Faults of ours fail the test; ``heard`` of the client has the access log."""
    heard = Heard()
    server = Server(
        app,
        cluster,
        data,
        ServeSettings(**settings),
        "127.0.0.1:0",
        warn=heard.warnings.append,
        log=heard.lines.append,
    )
    server.start()
    client = Http(server.port)
    client.heard = heard  # type: ignore[attr-defined]
    client.server = server  # type: ignore[attr-defined]
    try:
        yield client
    finally:
        server.stop()
        # Shown where the test fails.
        print(*heard.warnings, sep="\n")
    assert not server.is_running
    assert heard.warnings == []


def token_for(data: Path, name: str, *scopes: str) -> str:
    return TokenBook(tokens_path(data)).create(name, scopes, None)[1]


class Process:
    """``headrace serve`` itself."""

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
        with self.errors.open("ab") as said:
            self.process = subprocess.Popen(
                [COMMAND, "serve", app, "-b", bootstrap, "--data", data, "--listen", "127.0.0.1:0", *options],
                stdout=subprocess.PIPE,
                stderr=said,
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
        self._ended()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        unwatch(self.process)
        self.process.send_signal(how)
        return self._ended()

    def _ended(self) -> int:
        until(lambda: self.process.poll() is not None, "the server to end", timeout_s=120)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.returncode
