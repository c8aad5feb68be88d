"""Views in Redis or in a full-text index: by key or by words at any size, otherwise as far as the store lets look.

A view is asked once, and the answer has rows and position of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.serve.errors import NotServing
from headrace.serve.sql.column_types import batches_of
from headrace.serve.sql.planning import NO_ROW, Need, key_of
from headrace.serve.sql.reading import Read, not_built
from headrace.views.asking import Asker
from headrace.views.position import Shape, Standing
from headrace.views.question import Question
from headrace.views.rows import Row

__all__ = ["AskedReading"]

_ROWS_MAX = 1_000_000
"""More than a store of this kind gives."""
_MATCHES_MAX = 9_999


class AskedReading:
    def __init__(self, asker: Asker, left: Callable[[], float]) -> None:
        self._asker = asker
        self._left = left

    def standing(self, view: str) -> Standing | None:
        return self._asker.standing(view)

    def read(self, view: str, need: Need, words: str) -> Read:
        if need.where == NO_ROW:
            standing = self.standing(view)
            if standing is None:
                raise not_built(view)
            return Read(standing, iter(()))

        def question(shape: Shape) -> Question:
            key = key_of(shape, need.where)
            if words:
                return Question(_MATCHES_MAX, words=words)
            return Question(_ROWS_MAX if key is None else 1, key=key)

        asked = self._asker.ask(view, question, self._left())
        if asked is None:
            raise not_built(view)
        if asked.standing.fault:
            raise NotServing(f"view {view!r} is not as it was written: {asked.standing.fault}")
        fields = [asked.standing.shape.fields[at] for at in need.columns]
        return Read(asked.standing, batches_of(fields, _picked(asked.rows, need.columns)))


def _picked(rows: list[Row], places: tuple[int, ...]) -> Iterator[Row]:
    for row in rows:
        yield tuple(row[at] for at in places)
