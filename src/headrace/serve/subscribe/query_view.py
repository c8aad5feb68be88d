"""Selects the changes of a view that match a query, and encodes them once for all subscribers of the query.

If a changed row does not match the query, the server sends its key as gone, because the row might have matched before.
The server does not store which rows a subscriber has. It omits keys that can never match. For a full-text query (a
query with ``words``), a thread searches a temporary index of the changed rows, with the same rules as the view's own
full-text index (``headrace.stores.search.words``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.clock import Clock
from headrace.serve.subscribe.history import History
from headrace.serve.subscribe.log_position import Change, Epoch, LogPosition, Step
from headrace.serve.subscribe.messages import PART_BYTES, Message, in_parts
from headrace.serve.subscribe.query import ResumeCursor, SubscriptionQuery
from headrace.serve.subscribe.source import key_schema
from headrace.stores.position import ViewSchema
from headrace.stores.query import EVERY_ROW
from headrace.stores.rows import Row
from headrace.stores.scan import predicate_for

__all__ = ["Frame", "MatchingRows", "QueryView"]

_FRAMES_CACHED = 32

MatchingRows = Callable[[list[Row]], Awaitable[set[int]]]
"""Returns the indexes of the rows that match the words of the query."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The messages for several merged steps."""

    messages: list[Message]
    next: int
    """The number of the following step."""
    log_position: LogPosition
    is_empty: bool


class QueryView:
    """Use it in one event loop. ``matching_rows`` must be set if the query has words."""

    def __init__(
        self,
        query: SubscriptionQuery,
        epoch: Epoch,
        schema: ViewSchema,
        history: History,
        clock: Clock,
        matching_rows: MatchingRows | None = None,
    ) -> None:
        self.query = query
        self.schema = schema
        self.epoch = epoch
        self._history = history
        self._clock = clock
        self._matching_rows = matching_rows
        condition = query.condition(schema)
        self._row_matches = None if condition == EVERY_ROW else predicate_for(schema, condition)
        keys = key_schema(schema)
        key_condition = query.key_condition(keys)
        self._key_matches = None if key_condition == EVERY_ROW else predicate_for(keys, key_condition)
        self.order = query.order(schema)
        self._frames: OrderedDict[tuple[int, int], Frame | asyncio.Task[Frame]] = OrderedDict()
        self.subscribers = 0

    def cursor(self, log_position: LogPosition) -> str:
        return ResumeCursor.at(self.query, self.epoch, log_position, self._clock.now_ms()).encode()

    async def frame(self, first: int, end: int) -> Frame:
        """Merge the steps from ``first`` up to ``end`` (exclusive). Merge fewer if the frame becomes too large, but at
        least one.
        """
        cached = self._frames.get((first, end))
        if cached is None:
            # If the query has no words, the merge does not wait, so no task is needed.
            frame = self._merge(first, end)
            cached = await frame if self._matching_rows is None else self._share((first, end), frame)
            self._frames[first, end] = cached
            if len(self._frames) > _FRAMES_CACHED:
                self._frames.popitem(last=False)
        return cached if isinstance(cached, Frame) else await asyncio.shield(cached)

    def _share(self, steps: tuple[int, int], frame: Coroutine[Any, Any, Frame]) -> asyncio.Task[Frame]:
        def store_result(task_done: asyncio.Task[Frame]) -> None:
            if self._frames.get(steps) is task_done:
                if task_done.cancelled() or task_done.exception() is not None:
                    del self._frames[steps]
                else:
                    self._frames[steps] = task_done.result()

        task = asyncio.create_task(frame)
        task.add_done_callback(store_result)
        return task

    def check_resumable(self, log_position: LogPosition) -> None:
        """Raise ``CursorExpired`` if too much has changed after the position. Only ``TopNView`` implements this."""

    async def since(self, log_position: LogPosition, known_ms: int) -> Frame:
        """Return the changes after a position, which can lie within a step. The history must include the position."""
        changes, number = self._history.align(log_position)
        after = self._history.border(number)
        return self._frame(await self.merged(changes), log_position, after, number)

    async def merged(self, changes: Sequence[Change]) -> dict[bytes, bytes | None]:
        """Return the last row of each key, or None if that row does not match. The history can change during the
        call.
        """
        return {
            change.key: change.row if is_match else None
            for change, is_match in await self.matched_changes(changes)
        }

    async def matched_changes(self, changes: Sequence[Change]) -> list[tuple[Change, bool]]:
        """Return the changes whose keys can match, in order. Each change has a flag: whether its row matches."""
        row_matches = self._row_matches
        matched_changes = [
            (change, change.values is not None and (row_matches is None or row_matches(change.values)))
            for change in changes
            if self.may_match(change)
        ]
        if self._matching_rows is None:
            return matched_changes
        candidates = [index for index, (_, is_match) in enumerate(matched_changes) if is_match]
        rows = [values for index in candidates if (values := matched_changes[index][0].values) is not None]
        matching = await self._matching_rows(rows) if rows else set()
        for number, index in enumerate(candidates):
            if number not in matching:
                matched_changes[index] = (matched_changes[index][0], False)
        return matched_changes

    def may_match(self, change: Change) -> bool:
        """Return False if no row with this key can match the query."""
        return self._key_matches is None or self._key_matches(change.key_values)

    async def _merge(self, first: int, end: int) -> Frame:
        since = after = self._history.border(first)
        merged: dict[bytes, bytes | None] = {}
        size, number = 0, first
        for steps in _by_size(self._history.steps(first, end)):
            for key, row in (
                await self.merged([change for step in steps for change in step.changes])
            ).items():
                size += len(row or b"") - len(merged.get(key) or b"")
                size += 0 if key in merged else len(key)
                merged[key] = row
            after = steps[-1].after
            number += len(steps)
            if size > PART_BYTES:
                break
        return self._frame(merged, since, after, number)

    def _frame(
        self, merged: dict[bytes, bytes | None], since: LogPosition, after: LogPosition, number: int
    ) -> Frame:
        generation = self.epoch.generation
        batch_fields = (
            {"batches": {"generation": generation, "first": since.batch + 1, "last": after.batch}}
            if self.epoch.by_batch
            else {}
        )
        messages = in_parts(
            "changes",
            (row for row in merged.values() if row is not None),
            (key for key, row in merged.items() if row is None),
            {**batch_fields, "since": since.to_json(generation), **self.position_and_cursor(after)},
        )
        return Frame(messages, number, after, not merged)

    def position_and_cursor(self, log_position: LogPosition) -> dict[str, Any]:
        """Return the fields position and cursor for the last message that brings a subscriber to the position."""
        return {"position": self.epoch.document(log_position), "cursor": self.cursor(log_position)}


def _by_size(steps: Iterable[Step]) -> list[list[Step]]:
    """Group small steps, so that a group needs only one word index."""
    groups: list[list[Step]] = []
    size = PART_BYTES
    for step in steps:
        if size >= PART_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(step)
        size += step.size_bytes
    return groups
