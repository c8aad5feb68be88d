"""Measures how long a client waits for the smallest response, in a process that does nothing else.

``python -m faults.log.ping_process PORT`` sends a request every few milliseconds and prints a line for every slow
response: the time of its arrival on the monotonic clock, which all processes share, and how long it took.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from faults.protocol.connection import Connection, Gone
from faults.servers.fork_server import ROOT, parent_death_prefix

__all__ = ["Pings"]

_API_VERSIONS = 18
_PAUSE_S = 0.003
_REPORTED_MS_MIN = 20.0
_TIMEOUT_S = 60.0


class Pings:
    """The ping process. Without a port no process starts, and every time is 0."""

    def __init__(self, port: int | None) -> None:
        self._slow_responses: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        if port is not None:
            self._process = subprocess.Popen(
                [*parent_death_prefix(), sys.executable, "-m", "faults.log.ping_process", str(port)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Pings:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            arrived_at, took_ms = map(float, line.split())
            self._slow_responses.append((arrived_at, took_ms))

    def slowest_ms(self, began: float, ended: float) -> float:
        """Return the duration of the slowest response between two times, including a response that is overdue."""
        if self._process is not None:
            time.sleep(4 * _PAUSE_S)
        return max(
            (took_ms for arrived_at, took_ms in self._slow_responses if began <= arrived_at <= ended + 1),
            default=0.0,
        )


def main(port: int) -> None:
    with Connection(port, client_id="ping", timeout_s=_TIMEOUT_S) as connection:
        while True:
            sent_at = time.monotonic()
            try:
                connection.call(_API_VERSIONS, 0, b"", lambda reader: reader.int16())
            except Gone:
                print(time.monotonic(), _TIMEOUT_S * 1000, flush=True)
                return
            arrived_at = time.monotonic()
            took_ms = (arrived_at - sent_at) * 1000
            if took_ms >= _REPORTED_MS_MIN:
                print(arrived_at, took_ms, flush=True)
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
