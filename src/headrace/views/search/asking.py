"""Questions to a full-text index: by words, by key, and by looking at all rows where they are not too many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from headrace.clock import Clock, SystemClock
from headrace.views.asking import Ask, Asker
from headrace.views.errors import QuestionRefused
from headrace.views.position import Standing
from headrace.views.question import Asked, Question
from headrace.views.rows import Row
from headrace.views.scanning import found_in, judge_of, within
from headrace.views.search.matching import misunderstood
from headrace.views.search.reading import SearchReader
from headrace.views.search.snapshot import Snapshot
from headrace.views.store import Part

__all__ = ["SearchAsker"]

_WHOLE_MAX = 100_000
_MATCHES_MAX = 10_000


class SearchAsker(Asker):
    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._reader = SearchReader(path, self._clock)
        self.where = self._reader.where

    def close(self) -> None:
        self._reader.close()

    def standing(self, view: str) -> Standing | None:
        snapshot = self._reader.snapshot(view, Part.SERVING)
        return None if snapshot is None else snapshot.told.standing

    def ask(self, view: str, ask: Ask, timeout_s: float) -> Asked | None:
        snapshot = self._reader.snapshot(view, Part.SERVING)
        if snapshot is None:
            return None
        standing = snapshot.told.standing
        question = ask(standing.shape)
        if question.words:
            try:
                found = self._sorted if question.order else self._matching
                return found(snapshot, question, timeout_s)
            except ValueError as error:
                raise misunderstood(error, snapshot.documents.names) from error
        if question.key is not None:
            row = snapshot.row(question.key)
            return Asked(standing, question, [] if row is None else [row], False)
        count = snapshot.count()
        if count > _WHOLE_MAX:
            raise QuestionRefused(
                f"view {view!r} has {count} rows in a full-text index, which finds rows by words or by key; others are"
                f" looked for in up to {_WHOLE_MAX} rows",
                hint="ask by match or by key, or keep the view in SQLite or PostgreSQL beside",
            )
        rows = within(snapshot.rows(), self._clock, timeout_s)
        return Asked(standing, question, *found_in(standing.shape, rows, question))

    def _matching(self, snapshot: Snapshot, question: Question, timeout_s: float) -> Asked:
        standing = snapshot.told.standing
        if question.skip + question.limit >= _MATCHES_MAX:
            raise QuestionRefused(
                f"of what words are found in, the best {_MATCHES_MAX} rows can be had",
                hint="ask for more words",
            )
        found = within(snapshot.matching(question.words, _MATCHES_MAX), self._clock, timeout_s)
        fitting = filter(judge_of(standing.shape, question.where), found)
        rows = [*itertools.islice(fitting, question.skip, question.skip + question.limit + 1)]
        return Asked(standing, question, rows[: question.limit], len(rows) > question.limit)

    def _sorted(self, snapshot: Snapshot, question: Question, timeout_s: float) -> Asked:
        """In an order that the index does not have: all that have the words are looked at."""
        standing = snapshot.told.standing
        rows = within(snapshot.matching(question.words, _WHOLE_MAX + 1), self._clock, timeout_s)
        return Asked(standing, question, *found_in(standing.shape, _not_too_many(rows), question))


def _not_too_many(rows: Iterator[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number == _WHOLE_MAX:
            raise QuestionRefused(
                f"more than {_WHOLE_MAX} rows have these words, and up to so many are sorted",
                hint="ask for more words, or keep the view in SQLite or PostgreSQL beside",
            )
        yield row
