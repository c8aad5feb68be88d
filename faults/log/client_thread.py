"""A client of a run, in a thread. An unexpected exception in it is reported as a problem."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterable

from faults.log.oracle import Ledger
from faults.protocol.connection import Connection, Gone

__all__ = ["ClientThread", "finish_all"]

_RECONNECT_S = 0.005
_RECONNECT_S_MAX = 0.2


class ClientThread(threading.Thread):
    """``finish`` stops new requests. The client then waits for outstanding responses until ``give_up``."""

    def __init__(self, name: str, port: int, ledger: Ledger, *, timeout_s: float = 10.0) -> None:
        super().__init__(name=name, daemon=True)
        self.port = port
        self.ledger = ledger
        self._timeout_s = timeout_s
        self._finish = threading.Event()
        self._give_up = threading.Event()

    @property
    def in_flight(self) -> int:
        """The number of requests that have no response yet."""
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
            self.ledger.report_problem(f"client {self.name} failed:\n{traceback.format_exc()}")

    def work(self) -> None:
        raise NotImplementedError

    def connect(self) -> Connection | None:
        """Connect as soon as the broker accepts. Return None if the client must give up before that."""
        began = time.monotonic()
        while not self.gave_up:
            try:
                return Connection(self.port, client_id=self.name, timeout_s=self._timeout_s)
            except Gone:
                # Retry almost immediately at first, because the broker starts fast, and more slowly in a long
                # outage.
                time.sleep(min(_RECONNECT_S_MAX, _RECONNECT_S + (time.monotonic() - began) / 20))
        return None


def finish_all(workers: Iterable[ClientThread], ledger: Ledger, timeout_s: float = 120.0) -> None:
    """Wait until all clients have finished. A client that does not finish is a problem."""
    workers = list(workers)
    for worker in workers:
        worker.finish()
    deadline = time.monotonic() + timeout_s
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            ledger.report_problem(f"client {worker.name} did not finish within {timeout_s:.0f} s")
            worker.give_up()
    for worker in workers:
        worker.join(15.0)
