"""How long a client may keep us waiting, in one direction: for the rest of a request, or to take an answer.

It has a fixed time, and a second more for every so many bytes that it moves. So a slow line is fine, and a byte now and
then is not.
"""

from __future__ import annotations

from headrace.broker.limits import BrokerLimits

__all__ = ["Patience"]


class Patience:
    __slots__ = ("_before", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._before = 0

    def begin(self, now: float, moved: int = 0) -> None:
        """We wait from ``now`` on; ``moved`` bytes came before."""
        self.since = now
        self._before = moved

    def end(self) -> None:
        self.since = None

    def put_off(self, by_s: float) -> None:
        """We were away ourselves for so long."""
        if self.since is not None:
            self.since += by_s

    def lost(self, now: float, moved: int, limits: BrokerLimits) -> str | None:
        """What little the client has managed, if its time is up."""
        if self.since is None:
            return None
        waited_s, done = now - self.since, moved - self._before
        if waited_s <= limits.slow_ms_max / 1000 + done / limits.slow_bytes_per_s_min:
            return None
        return f"{done} bytes in {waited_s:.1f} s"
