"""A connection that does not wait for ever for a server that is silent.

A server that sleeps, or a machine that hangs, keeps its connections: its kernel answers for it, so that neither
keepalives nor time-outs of the server's own end them. And a statement may take as long as it needs, minutes where a
large view takes the place of another. So when nothing has come for a while, the server is asked for one more
connection: if it has none to give, it does not answer, and the statement is given up. Whoever is to end waits for a
moment only.

What was given up may have been done or not. A follower finds out by the position in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready

__all__ = ["PatientConnection"]

SILENT_S = 10.0
_STOP_S = 2.0
"""How long an answer is waited for that nobody wants any more."""
_GLANCE_S = 0.1

T = TypeVar("T")


class PatientConnection(psycopg.Connection[Any]):
    look: Callable[[], None] | None = None
    """Raises if the server does not answer."""
    is_stopping: Callable[[], bool] | None = None
    _given_up: psycopg.Error | None = None

    def wait(self, gen: PQGen[T], interval: float = _GLANCE_S, timeout: float | None = None) -> T:
        if self._given_up is not None:
            raise self._given_up
        try:
            return super().wait(self._patient(gen, interval), interval, timeout)
        except _GivenUp as error:
            # What comes for it later is not for anybody; and a transaction ends with its connection.
            self._given_up = error
            self.close()
            raise

    def _patient(self, gen: PQGen[T], interval: float) -> PQGen[T]:
        silent_s, asked_s = 0.0, 0.0
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready == Ready.NONE:
                    silent_s += interval
                    if silent_s - asked_s >= SILENT_S:
                        self._ask(silent_s)
                        asked_s = silent_s
                    if silent_s >= _STOP_S and self.is_stopping is not None and self.is_stopping():
                        raise _GivenUp(f"no answer for {silent_s:.0f} s, and it was to stop")
                else:
                    silent_s, asked_s = 0.0, 0.0
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result

    def _ask(self, silent_s: float) -> None:
        if self.look is None:
            return
        try:
            self.look()
        except psycopg.OperationalError as error:
            raise _GivenUp(f"no answer for {silent_s:.0f} s, nor another connection: {error}") from error


class _GivenUp(psycopg.OperationalError):
    pass
