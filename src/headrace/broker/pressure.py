"""Memory that all clients together hold, and who goes when it is too much.

One account is kept for requests that are not whole or not handled, and one for answers that are not taken. A client
that does its part holds bytes for milliseconds. So the one that has held some longest is the one that makes us wait,
and when an account is overdrawn that one is closed, then the next, until it no longer is.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

__all__ = ["Account", "Holder"]


class Holder(Protocol):
    def evict(self, reason: str) -> None:
        """Close at once, and let go of everything."""


H = TypeVar("H", bound=Holder)


class Account(Generic[H]):
    """Invariant: ``total`` is the sum of what the holders hold, and holders stand in the order in which they began."""

    def __init__(self, what: str, bytes_max: int) -> None:
        self.total = 0
        self.peak = 0
        self.evicted = 0
        self.bytes_max = bytes_max
        self._what = what
        self._held: dict[H, int] = {}

    def hold(self, holder: H, size: int) -> None:
        """``holder`` now holds ``size`` bytes in all; none means that it is done."""
        before = self._held.get(holder, 0)
        if size == before:
            return
        self.total += size - before
        if size:
            self._held[holder] = size
        else:
            del self._held[holder]
        if self.total > self.peak:
            self.peak = self.total
        while self.total > self.bytes_max and self._held:
            slowest = next(iter(self._held))
            its = self._held[slowest]
            self.evicted += 1
            # Before it is closed, which may call back.
            self.total -= self._held.pop(slowest)
            slowest.evict(
                f"all clients together hold more than {self.bytes_max} bytes of {self._what}, and this one"
                f" has held some longest, {its} bytes"
            )

    def share(self) -> int:
        """What one more holder may take without crowding the others out."""
        return max(0, self.bytes_max - self.total) // 4
