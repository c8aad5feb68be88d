"""Measures how long a client waits for the smallest response, in a process that does nothing else.

``python -m faults.log.ping_process PORT`` sends a request every few milliseconds and prints a line for every slow
response: the time of its arrival on the monotonic clock, which all processes share, and how long it took. A second
process only sleeps, and reports when the machine did not wake it in time. A wait does not count while the machine
itself stood still.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from faults.protocol.connection import Connection, Gone
from faults.servers.fork_server import ROOT, die_with_parent, parent_death_prefix

__all__ = ["Pings", "waited_ms"]

_API_VERSIONS = 18
_PAUSE_S = 0.003
_REPORTED_MS_MIN = 20.0
_TIMEOUT_S = 60.0
_SLEEP_S = 0.002
_STALL_MS_MIN = 10.0

#: The end of an interval on the monotonic clock, and its duration in milliseconds.
Interval = tuple[float, float]


class Pings:
    """The ping process. Without a port no process starts, and every time is 0."""

    def __init__(self, port: int | None) -> None:
        self._slow_responses: list[Interval] = []
        self._stalls: list[Interval] = []
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
            kind, ended_at, took_ms = line.split()
            (self._stalls if kind == "stall" else self._slow_responses).append(
                (float(ended_at), float(took_ms))
            )

    def slowest_ms(self, began: float, ended: float) -> float:
        """Return the duration of the slowest response between two times, including a response that is overdue."""
        if self._process is not None:
            time.sleep(4 * _PAUSE_S)
        return max(
            (
                waited_ms((arrived_at, took_ms), self._stalls)
                for arrived_at, took_ms in tuple(self._slow_responses)
                if began <= arrived_at <= ended + 1
            ),
            default=0.0,
        )


def waited_ms(response: Interval, stalls: list[Interval]) -> float:
    """Return how long a response took, without the time in which the machine stood still."""
    arrived_at, took_ms = response
    sent_at = arrived_at - took_ms / 1000
    stalled_s = sum(
        max(0.0, min(arrived_at, ended_at) - max(sent_at, ended_at - stall_ms / 1000))
        for ended_at, stall_ms in tuple(stalls)
    )
    return max(0.0, took_ms - stalled_s * 1000)


def _report(kind: str, ended_at: float, took_ms: float) -> None:
    # One write, because two processes share the pipe.
    os.write(1, f"{kind} {ended_at} {took_ms}\n".encode())


def _watch_the_machine() -> None:
    while True:
        began = time.monotonic()
        time.sleep(_SLEEP_S)
        ended = time.monotonic()
        stall_ms = (ended - began - _SLEEP_S) * 1000
        if stall_ms >= _STALL_MS_MIN:
            _report("stall", ended, stall_ms)


def main(port: int) -> None:
    if not os.fork():
        die_with_parent()
        _watch_the_machine()
    with Connection(port, client_id="ping", timeout_s=_TIMEOUT_S) as connection:
        while True:
            sent_at = time.monotonic()
            try:
                connection.call(_API_VERSIONS, 0, b"", lambda reader: reader.int16())
            except Gone:
                _report("slow", time.monotonic(), _TIMEOUT_S * 1000)
                return
            arrived_at = time.monotonic()
            took_ms = (arrived_at - sent_at) * 1000
            if took_ms >= _REPORTED_MS_MIN:
                _report("slow", arrived_at, took_ms)
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]))
