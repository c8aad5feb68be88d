"""A log server in its own process: Apache Kafka or the embedded broker. They differ only in ``name``."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.wait import until, unwatch, watch_process

__all__ = ["Server", "answers", "free_port", "spawn"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Send ApiVersions 0, the oldest request that every Kafka server answers, and return whether a response arrives."""
    frame = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


@dataclass
class Server:
    """A running server: its kind, its port and its output file."""

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
        until(lambda: answers(self.port), f"{self.name} responds at port {self.port}", timeout_s)

    def kill(self) -> None:
        unwatch(self.process)
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop the server as an operator does, and return its exit code."""
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
    """Start a program with its output in a file."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        return subprocess.Popen(
            [os.fspath(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
