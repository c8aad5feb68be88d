"""Questions to a view that nothing keeps: the topic is read to its end and folded, each time anew.

The position is where the topic ended when it was read. Compaction may remove a record while it is read, because a later
one of its key has come behind that end: so a compacted topic is read on until nothing came meanwhile, and where that
does not happen in time the answer is late, not wrong. What does not fit is left out and counted; a question writes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.clock import Clock, SystemClock
from headrace.model.errors import ValueDoesNotFit
from headrace.model.flow import Flow
from headrace.model.view import View
from headrace.views.asking import Ask, Asker
from headrace.views.errors import QueryTimedOut, QuestionRefused
from headrace.views.origin import NotYet, Origin, find_origin
from headrace.views.position import Position, Shape, Standing
from headrace.views.question import Asked, Question, by_key, key_is
from headrace.views.rows import Row, RowDecoder
from headrace.views.scanning import found_in
from headrace.views.staleness import retention_of

__all__ = ["LogAsker"]

_LOOK_EVERY = 500

Ends = dict[int, int]


class LogAsker(Asker):
    def __init__(
        self,
        cluster: Cluster,
        view: View,
        flows: Sequence[Flow],
        records_max: int,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._flows = flows
        self._records_max = records_max
        self._clock = clock or SystemClock()
        self.where = f"topic {view.topic.name!r}"

    def close(self) -> None:
        """Nothing is held."""

    def standing(self, view: str) -> Standing | None:
        origin = find_origin(self._cluster, self._view, self._flows)
        if isinstance(origin, NotYet):
            return None
        return self._standing(origin, self._cluster.ends(origin.topic), 0)

    def ask(self, view: str, ask: Ask, timeout_s: float) -> Asked | None:
        deadline = self._clock.steady() + timeout_s
        origin = find_origin(self._cluster, self._view, self._flows)
        if isinstance(origin, NotYet):
            return None
        question = ask(origin.shape)
        if question.words:
            raise QuestionRefused(
                f"view {view!r} has no full-text index: it is computed on read",
                hint="keep it in one: app.view(..., store=Search())",
            )
        fold = _Fold(origin)
        compacted = retention_of(self._cluster, origin.topic).compacted
        begin, ends = self._cluster.starts(origin.topic), self._cluster.ends(origin.topic)
        while True:
            self._expect_few(view, fold.records + sum(max(0, ends[one] - begin[one]) for one in begin))
            ranges = {number: (at, ends[number]) for number, at in begin.items()}
            for number, message in enumerate(read(self._cluster, origin.topic, ranges)):
                if number % _LOOK_EVERY == 0 and self._clock.steady() > deadline:
                    raise QueryTimedOut(timeout_s)
                fold.take(message.key(), message.value())
            begin, ends = ends, self._cluster.ends(origin.topic) if compacted else ends
            if begin == ends:
                break
            if self._clock.steady() > deadline:
                raise QueryTimedOut(timeout_s)
        rows, more = found_in(origin.shape, fold.rows.values(), _plain(origin.shape, question))
        return Asked(self._standing(origin, ends, fold.dead), question, rows, more)

    def _standing(self, origin: Origin, ends: Ends, dead: int) -> Standing:
        now = self._clock.now_ms()
        position = Position(origin.topic, origin.topic_id, ends, complete_ms=now, stored_ms=now, dead=dead)
        return Standing(origin.shape, position, 0, "computed on read")

    def _expect_few(self, view: str, records: int) -> None:
        if records > self._records_max:
            raise QuestionRefused(
                f"view {view!r} is computed on read from up to {self._records_max} records, and there are {records}",
                hint="keep it in a store, or raise OnRead(records_max=...)",
            )


class _Fold:
    def __init__(self, origin: Origin) -> None:
        self.rows: dict[Row, Row] = {}
        self.records = 0
        self.dead = 0
        self._decoder = RowDecoder(origin.shape, origin.topic_key)
        self._places = origin.shape.key_places

    def take(self, key: Any, value: Any) -> None:
        self.records += 1
        try:
            if value is None:
                self.rows.pop(self._decoder.key(key), None)
            else:
                row = self._decoder.row(value)
                self.rows[tuple(row[at] for at in self._places)] = row
        except ValueDoesNotFit:
            self.dead += 1


def _plain(shape: Shape, question: Question) -> Question:
    """A key is looked for as anything else is."""
    if question.key is None:
        return question
    return Question(question.limit, key_is(shape, question.key), by_key(shape))
