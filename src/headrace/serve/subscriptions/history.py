"""The last steps of a view, for all who follow it: who is behind takes what it lacks from here.

Steps are numbered as they come, and follow each other without a gap. The oldest go when there is too much; the newest
stays, whatever its size. So what is held is bounded, however many subscribers there are and however slow they be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.step import Change, Step

__all__ = ["History"]


class History:
    """In one event loop."""

    def __init__(self, start: Place, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._steps: deque[tuple[Step, int]] = deque()
        self._bytes = 0
        self._first = 0
        self._begin = start
        self._end = start

    @property
    def first(self) -> int:
        """The number of the oldest step that is there."""
        return self._first

    @property
    def next(self) -> int:
        """The number that the next step will have."""
        return self._first + len(self._steps)

    @property
    def begin(self) -> Place:
        return self._begin

    @property
    def end(self) -> Place:
        return self._end

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def room_bytes(self) -> int:
        return max(0, self._bytes_max - self._bytes)

    def append(self, step: Step) -> None:
        assert step.before == self._end, (step.before, self._end)
        self._steps.append((step, step.size_bytes))
        self._bytes += self._steps[-1][1]
        self._end = step.after
        while self._bytes > self._bytes_max and len(self._steps) > 1:
            gone, size = self._steps.popleft()
            self._bytes -= size
            self._first += 1
            self._begin = gone.after

    def prepend(self, steps: Iterable[Step]) -> None:
        """What was before the oldest, in order."""
        for step in reversed([*steps]):
            assert step.after == self._begin, (step.after, self._begin)
            self._steps.appendleft((step, step.size_bytes))
            self._bytes += self._steps[0][1]
            self._first -= 1
            self._begin = step.before

    def steps(self, first: int, end: int) -> Iterator[Step]:
        assert self._first <= first <= end <= self.next, (self._first, first, end, self.next)
        return (step for step, _ in islice(self._steps, first - self._first, end - self._first))

    def joint(self, place: Place, until: Place | None = None) -> tuple[list[Change], int]:
        """What is to be told to whoever is at a place that may lie within steps, up to the first border between steps
        that has all of it (and of ``until``), and the number of the step behind that. The place must be between begin
        and end.
        """
        goal = place if until is None else until
        assert place.covers(self._begin)
        assert self._end.covers(goal)
        found: list[Change] = []
        number, border = self._first, self._begin
        for step, _ in self._steps:
            if border.covers(goal):
                break
            found += [one for one in step.changes if not place.has(one.partition, one.offset)]
            border = step.after
            number += 1
        return found, number

    def border(self, number: int) -> Place:
        """Before the step of that number."""
        if number == self.next:
            return self._end
        return self._steps[number - self._first][0].before
