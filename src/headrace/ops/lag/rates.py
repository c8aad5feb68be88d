"""How fast counts grow, from what they were at the last few looks: a fixed number of them for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass

__all__ = ["Rate", "Rates"]

_WINDOW_S = 60.0
_LOOKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Rate:
    per_s: float
    """Over the window, or since the first look."""
    last_per_s: float
    """Since the last look."""


class Rates:
    """``window_s`` is how far back the longer of the two rates goes."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._looks: dict[Hashable, deque[tuple[float, int]]] = {}

    def note(self, key: Hashable, at_s: float, count: int) -> Rate | None:
        """None at the first look. A count that went back begins anew: it is another one now."""
        looks = self._looks.setdefault(key, deque())
        if looks and (count < looks[-1][1] or at_s <= looks[-1][0]):
            looks.clear()
        while looks and (
            len(looks) >= _LOOKS_MAX or (len(looks) > 1 and at_s - looks[0][0] > self._window_s)
        ):
            looks.popleft()
        before = (looks[0], looks[-1]) if looks else None
        looks.append((at_s, count))
        if before is None:
            return None
        (first_s, first), (last_s, last) = before
        return Rate((count - first) / (at_s - first_s), (count - last) / (at_s - last_s))

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forgets all others."""
        for key in [one for one in self._looks if one not in keys]:
            del self._looks[key]
