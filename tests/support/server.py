"""A log server that runs as a process of its own: Apache Kafka or the embedded broker, told apart only by name."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import until, unwatch, watch_process

__all__ = ["Server", "answers", "free_port", "spawn"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """One round trip of the oldest request that every Kafka server must answer (ApiVersions 0)."""
    frame = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


@dataclass
class Server:
    """A running server; ``name`` says which kind, ``port`` where, ``log`` what it printed."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    data: Path
    stop_timeout_s: float = 120.0
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        watch_process(self.process, self.name, self.log)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_until_it_answers(self, timeout_s: float = 600.0) -> None:
        until(lambda: answers(self.port), f"{self.name} answers at port {self.port}", timeout_s)

    def kill(self) -> None:
        unwatch(self.process)
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to stop as an operator would, and return its exit code."""
        unwatch(self.process)
        self.process.terminate()
        try:
            return self.process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} ignored SIGTERM for {self.stop_timeout_s} s") from None


def spawn(
    command: Sequence[str | os.PathLike[str]], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a server with its output in a file; the process dies with us only if we stop it."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            [os.fspath(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
