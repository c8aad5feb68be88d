"""What one question sees of a view's steps: worked out and written once for all who ask it.

A change of a row that does not fit the question is told as gone, since the row may have fitted before: which rows did
is for the subscriber to know, not for the server to remember. Keys that never can fit are left out. Whether a row has
words is asked of an index of the rows that changed, in a thread, as the view's own index would answer
(``headrace.views.search.matching``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.clock import Clock
from headrace.serve.subscriptions.bookmark import Bookmark
from headrace.serve.subscriptions.decoding import key_shape
from headrace.serve.subscriptions.epoch import Epoch
from headrace.serve.subscriptions.history import History
from headrace.serve.subscriptions.message import PART_BYTES, Message, in_parts
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.step import Change, Step
from headrace.serve.subscriptions.wanted import Wanted
from headrace.views.position import Shape
from headrace.views.question import EVERY_ROW
from headrace.views.rows import Row
from headrace.views.scanning import judge_of

__all__ = ["Frame", "Having", "Lens"]

_FRAMES_KEPT = 32

Having = Callable[[list[Row]], Awaitable[set[int]]]
"""The places of the rows that have the words of a question."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Some steps as one."""

    messages: list[Message]
    next: int
    """The number of the step behind it."""
    place: Place
    is_empty: bool


class Lens:
    """In one event loop. ``having`` is there where the question has words."""

    def __init__(
        self,
        wanted: Wanted,
        epoch: Epoch,
        shape: Shape,
        history: History,
        clock: Clock,
        having: Having | None = None,
    ) -> None:
        self.wanted = wanted
        self.shape = shape
        self.epoch = epoch
        self._history = history
        self._clock = clock
        self._having = having
        condition = wanted.condition(shape)
        self._judge = None if condition == EVERY_ROW else judge_of(shape, condition)
        keys = key_shape(shape)
        key_condition = wanted.key_condition(keys)
        self._key_judge = None if key_condition == EVERY_ROW else judge_of(keys, key_condition)
        self.order = wanted.order(shape)
        self._frames: OrderedDict[tuple[int, int], Frame | asyncio.Task[Frame]] = OrderedDict()
        self.subscribers = 0

    def cursor(self, place: Place) -> str:
        return Bookmark.at(self.wanted, self.epoch, place, self._clock.now_ms()).tell()

    async def frame(self, first: int, end: int) -> Frame:
        """From the step ``first`` on, up to ``end``, or as many as there is room for in one; at least one."""
        found = self._frames.get((first, end))
        if found is None:
            # Without words nothing is waited for.
            made = self._made(first, end)
            found = await made if self._having is None else self._making((first, end), made)
            self._frames[first, end] = found
            if len(self._frames) > _FRAMES_KEPT:
                self._frames.popitem(last=False)
        return found if isinstance(found, Frame) else await asyncio.shield(found)

    def _making(self, steps: tuple[int, int], made: Coroutine[Any, Any, Frame]) -> asyncio.Task[Frame]:
        def note(done: asyncio.Task[Frame]) -> None:
            if self._frames.get(steps) is done:
                if done.cancelled() or done.exception() is not None:
                    del self._frames[steps]
                else:
                    self._frames[steps] = done.result()

        task = asyncio.create_task(made)
        task.add_done_callback(note)
        return task

    def expect_near(self, place: Place) -> None:
        """Raises ``CursorOld`` where going on from there is known to be too much."""

    async def behind(self, place: Place, known_ms: int) -> Frame:
        """For whoever was at a place that may lie within steps: what it lacks of them. What is remembered has it."""
        changes, number = self._history.joint(place)
        after = self._history.border(number)
        return self._told(await self.merged(changes), place, after, number)

    async def merged(self, changes: Sequence[Change]) -> dict[bytes, bytes | None]:
        """By key, as each is at the end. What is remembered may change meanwhile."""
        return {one.key: one.row if fits else None for one, fits in await self.judged(changes)}

    async def judged(self, changes: Sequence[Change]) -> list[tuple[Change, bool]]:
        """Those whose keys can fit, in their order, and whether the row does."""
        judge = self._judge
        found = [
            (one, one.values is not None and (judge is None or judge(one.values)))
            for one in changes
            if self.may_fit(one)
        ]
        if self._having is None:
            return found
        asked = [at for at, (_, fits) in enumerate(found) if fits]
        rows = [values for at in asked if (values := found[at][0].values) is not None]
        having = await self._having(rows) if rows else set()
        for number, at in enumerate(asked):
            if number not in having:
                found[at] = (found[at][0], False)
        return found

    def may_fit(self, change: Change) -> bool:
        """Whether a row of that key can."""
        return self._key_judge is None or self._key_judge(change.key_values)

    async def _made(self, first: int, end: int) -> Frame:
        since = after = self._history.border(first)
        merged: dict[bytes, bytes | None] = {}
        size, number = 0, first
        for steps in _by_size(self._history.steps(first, end)):
            for key, row in (await self.merged([one for step in steps for one in step.changes])).items():
                size += len(row or b"") - len(merged.get(key) or b"")
                size += 0 if key in merged else len(key)
                merged[key] = row
            after = steps[-1].after
            number += len(steps)
            if size > PART_BYTES:
                break
        return self._told(merged, since, after, number)

    def _told(self, merged: dict[bytes, bytes | None], since: Place, after: Place, number: int) -> Frame:
        generation = self.epoch.generation
        of_flow = (
            {"batches": {"generation": generation, "first": since.batch + 1, "last": after.batch}}
            if self.epoch.by_batch
            else {}
        )
        messages = in_parts(
            "changes",
            (row for row in merged.values() if row is not None),
            (key for key, row in merged.items() if row is None),
            {**of_flow, "since": since.told(generation), **self.told(after)},
        )
        return Frame(messages, number, after, not merged)

    def told(self, place: Place) -> dict[str, Any]:
        """What is said with the last of what leads there."""
        return {"position": self.epoch.position_json(place), "cursor": self.cursor(place)}


def _by_size(steps: Iterable[Step]) -> list[list[Step]]:
    """Some at a time, so that few indexes are made of small steps."""
    found: list[list[Step]] = []
    size = PART_BYTES
    for step in steps:
        if size >= PART_BYTES:
            found.append([])
            size = 0
        found[-1].append(step)
        size += step.size_bytes
    return found
