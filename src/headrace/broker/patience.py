"""How long a client may keep us waiting, in one direction: for the rest of a request, or to take an answer.

In each stretch of time it must finish, or move as many bytes as a line of the least speed moves in it. So a slow line
is fine, and a byte now and then is not. (Speed since the beginning would not do: the kernel takes megabytes from us at
once on behalf of a client that never reads.)
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
        stretch_s = limits.slow_ms_max / 1000
        waited_s, done = now - self.since, moved - self._before
        if waited_s <= stretch_s:
            return None
        if done >= stretch_s * limits.slow_bytes_per_s_min:
            self.begin(now, moved)
            return None
        return f"{done} bytes in {waited_s:.1f} s"
