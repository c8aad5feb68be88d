"""The last steps of a view, in memory. All subscribers share them, and a slow subscriber reads its missed steps here.

A step is the changes between two positions. Steps are numbered and contiguous. When the history exceeds its limit, it
drops the oldest steps, but never the newest. So memory is bounded for any number of slow subscribers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from headrace.serve.subscribe.log_position import Change, LogPosition, Step

__all__ = ["History"]


class History:
    """Use it in one event loop."""

    def __init__(self, start: LogPosition, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._steps: deque[tuple[Step, int]] = deque()
        self._bytes = 0
        self._first = 0
        self._begin = start
        self._end = start

    @property
    def first(self) -> int:
        """The number of the oldest step."""
        return self._first

    @property
    def next(self) -> int:
        """The number that the next new step will have."""
        return self._first + len(self._steps)

    @property
    def begin(self) -> LogPosition:
        return self._begin

    @property
    def end(self) -> LogPosition:
        return self._end

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def free_bytes(self) -> int:
        return max(0, self._bytes_max - self._bytes)

    def append(self, step: Step) -> None:
        assert step.before == self._end, (step.before, self._end)
        self._steps.append((step, step.size_bytes))
        self._bytes += self._steps[-1][1]
        self._end = step.after
        while self._bytes > self._bytes_max and len(self._steps) > 1:
            dropped, size = self._steps.popleft()
            self._bytes -= size
            self._first += 1
            self._begin = dropped.after

    def prepend(self, steps: Iterable[Step]) -> None:
        """Insert the steps, which are in order, before the oldest step."""
        for step in reversed([*steps]):
            assert step.after == self._begin, (step.after, self._begin)
            self._steps.appendleft((step, step.size_bytes))
            self._bytes += self._steps[0][1]
            self._first -= 1
            self._begin = step.before

    def steps(self, first: int, end: int) -> Iterator[Step]:
        assert self._first <= first <= end <= self.next, (self._first, first, end, self.next)
        return (step for step, _ in islice(self._steps, first - self._first, end - self._first))

    def align(self, log_position: LogPosition, until: LogPosition | None = None) -> tuple[list[Change], int]:
        """Align a position, which can lie within a step, with the borders between steps.

        Return the changes from the position to a border, and the number of the step after that border. The border is
        the first one at or after ``until`` (by default the position). The position must lie between begin and end.
        """
        goal = log_position if until is None else until
        assert log_position.covers(self._begin)
        assert self._end.covers(goal)
        changes: list[Change] = []
        number, border = self._first, self._begin
        for step, _ in self._steps:
            if border.covers(goal):
                break
            changes += [
                change
                for change in step.changes
                if not log_position.is_after(change.partition, change.offset)
            ]
            border = step.after
            number += 1
        return changes, number

    def border(self, number: int) -> LogPosition:
        """The position before the step with this number."""
        if number == self.next:
            return self._end
        return self._steps[number - self._first][0].before
