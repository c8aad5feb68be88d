"""A client of a run: a thread that works until it is told to finish, and whose own failure is a finding."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterable

from bench.faults.connection import Connection, Gone
from bench.faults.oracle import Ledger

__all__ = ["Worker", "finish_all"]

_RECONNECT_S = 0.005
_RECONNECT_S_MAX = 0.2


class Worker(threading.Thread):
    """``finish`` asks it to send nothing new; it then still waits for what it is owed, until ``give_up``."""

    def __init__(self, name: str, port: int, ledger: Ledger, *, timeout_s: float = 10.0) -> None:
        super().__init__(name=name, daemon=True)
        self.port = port
        self.ledger = ledger
        self._timeout_s = timeout_s
        self._finish = threading.Event()
        self._give_up = threading.Event()

    @property
    def in_flight(self) -> int:
        """Requests that were sent and not answered yet."""
        return 0

    @property
    def finishing(self) -> bool:
        return self._finish.is_set()

    @property
    def gave_up(self) -> bool:
        return self._give_up.is_set()

    def finish(self) -> None:
        self._finish.set()

    def give_up(self) -> None:
        self._finish.set()
        self._give_up.set()

    def run(self) -> None:
        try:
            self.work()
        except Exception:
            self.ledger.object(f"client {self.name} failed:\n{traceback.format_exc()}")

    def work(self) -> None:
        raise NotImplementedError

    def connect(self) -> Connection | None:
        """A connection as soon as the broker is there; ``None`` if the worker is to give up first."""
        began = time.monotonic()
        while not self.gave_up:
            try:
                return Connection(self.port, client_id=self.name, timeout_s=self._timeout_s)
            except Gone:
                # At once where the broker is just being started, and with patience where it stays away.
                time.sleep(min(_RECONNECT_S_MAX, _RECONNECT_S + (time.monotonic() - began) / 20))
        return None


def finish_all(workers: Iterable[Worker], ledger: Ledger, timeout_s: float = 120.0) -> None:
    """Let all of them come to their end; one that does not is a finding."""
    workers = list(workers)
    for worker in workers:
        worker.finish()
    deadline = time.monotonic() + timeout_s
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            ledger.object(f"client {worker.name} was not done within {timeout_s:.0f} s")
            worker.give_up()
    for worker in workers:
        worker.join(15.0)
