"""The views that a process follows at a time, each by a follower in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.runtime.part import Part
from headrace.views.errors import StaleWriter
from headrace.views.follower import Follower

__all__ = ["Followed"]

_STOP_S = 60.0


class Followed:
    """``make`` gives a new follower for the view at a place."""

    def __init__(self, make: Callable[[int], Follower]) -> None:
        self._make = make
        self._at: dict[int, tuple[Follower, Part, threading.Event]] = {}

    def begin(self, places: Sequence[int]) -> None:
        for place in places:
            if place not in self._at:
                follower, stop = self._make(place), threading.Event()
                part = Part(f"view {follower.view.name}", follower.run, stop)
                part.start()
                self._at[place] = follower, part, stop

    def end(self, places: Sequence[int]) -> None:
        """All of them have stopped when this returns, or were waited for long enough: stores refuse the rest."""
        gone = [self._at.pop(place) for place in places if place in self._at]
        for _, _, stop in gone:
            stop.set()
        for _, part, _ in gone:
            part.join(_STOP_S)

    def end_all(self) -> None:
        for _, _, stop in self._at.values():
            stop.set()
        for _, part, _ in self._at.values():
            part.join(_STOP_S)

    def begin_replaced(self) -> list[str]:
        """Those whose view somebody took over are begun again; gives their views' names."""
        places = [at for at, (_, part, _) in self._at.items() if isinstance(part.error, StaleWriter)]
        names = [self._at.pop(place)[0].view.name for place in places]
        self.begin(places)
        return names

    @property
    def followers(self) -> list[Follower]:
        return [follower for follower, _, _ in self._at.values()]

    @property
    def running(self) -> list[Follower]:
        return [follower for follower, part, _ in self._at.values() if part.is_running]

    @property
    def failed(self) -> list[Part]:
        return [part for _, part, _ in self._at.values() if part.error is not None]
