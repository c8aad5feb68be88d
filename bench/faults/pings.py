"""How long another client waits for the smallest of answers, by a process that does nothing else.

``python -m bench.faults.pings PORT`` asks without a pause longer than a few milliseconds, and prints a line for every
answer that took long: when it came, by the clock that all processes of the machine share, and how long it took.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from bench.faults.connection import Connection, Gone
from bench.faults.forking import ROOT, dying_with_us

__all__ = ["Pings"]

_API_VERSIONS = 18
_PAUSE_S = 0.003
_NOTED_MS_MIN = 20.0
_GIVEN_UP_S = 60.0


class Pings:
    """Without a port nobody pings, and every time is 0."""

    def __init__(self, port: int | None) -> None:
        self._noted: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        if port is not None:
            self._process = subprocess.Popen(
                [*dying_with_us(), sys.executable, "-m", "bench.faults.pings", str(port)],
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
            came_at, took_ms = map(float, line.split())
            self._noted.append((came_at, took_ms))

    def slowest_ms(self, began: float, ended: float) -> float:
        """Of the answers that came between two moments, and of one that is due since."""
        if self._process is not None:
            time.sleep(4 * _PAUSE_S)
        return max(
            (took_ms for came_at, took_ms in self._noted if began <= came_at <= ended + 1), default=0.0
        )


def main(port: int) -> None:
    with Connection(port, client_id="ping", timeout_s=_GIVEN_UP_S) as connection:
        while True:
            asked_at = time.monotonic()
            try:
                connection.ask(_API_VERSIONS, 0, b"", lambda reader: reader.int16())
            except Gone:
                print(time.monotonic(), _GIVEN_UP_S * 1000, flush=True)
                return
            came_at = time.monotonic()
            took_ms = (came_at - asked_at) * 1000
            if took_ms >= _NOTED_MS_MIN:
                print(came_at, took_ms, flush=True)
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
