"""Questions to a Delta table: a scan of one version, without the files and rows that Arrow can rule out by itself."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.clock import Clock, SystemClock
from headrace.views.asking import Ask, Asker
from headrace.views.delta.columns import Columns
from headrace.views.delta.reading import DeltaReader
from headrace.views.errors import QuestionRefused
from headrace.views.file_troubles import told_as
from headrace.views.position import Shape, Standing
from headrace.views.question import All, Asked, Compare, Condition, key_is
from headrace.views.scanning import found_in, judge_of, within
from headrace.views.store import Part

__all__ = ["DeltaAsker", "ruled_out"]

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.Expression.__eq__,
    "<": pc.Expression.__lt__,
    "<=": pc.Expression.__le__,
    ">": pc.Expression.__gt__,
    ">=": pc.Expression.__ge__,
}

_EXACT = (pa.int64(), pa.bool_(), pa.date32())


class DeltaAsker(Asker):
    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._reader = DeltaReader(path, self._clock)
        self.where = self._reader.where

    def close(self) -> None:
        self._reader.close()

    def standing(self, view: str) -> Standing | None:
        table = self._reader.table(view, Part.SERVING)
        return None if table is None or table.told is None else table.told.standing

    def ask(self, view: str, ask: Ask, timeout_s: float) -> Asked | None:
        table = self._reader.table(view, Part.SERVING)
        if table is None or table.told is None:
            return None
        standing = table.told.standing
        question = ask(standing.shape)
        if question.words:
            raise QuestionRefused(
                f"view {view!r} has no full-text index: its store is {self.where}",
                hint="keep it in one beside: app.view(..., store=Search())",
            )
        condition = question.where
        if question.key is not None:
            condition = key_is(standing.shape, question.key)
        with told_as(table.folder):
            rows = within(
                table.rows(ruled_out(standing.shape, table.columns(), condition)), self._clock, timeout_s
            )
            if question.key is not None:
                found = filter(judge_of(standing.shape, condition), rows)
                return Asked(standing, question, [*found][: question.limit], False)
            return Asked(standing, question, *found_in(standing.shape, rows, question))


def ruled_out(shape: Shape, columns: Columns, condition: Condition) -> Any:
    """True of all rows that fit, and perhaps of others; None where nothing can be said.

    Only comparisons that must all hold are used, of whole numbers, dates and truth values. Of what else there is the
    table's log has bounds that are not exact, or that Arrow does not compare, or takes otherwise than we do (NaN).
    """
    if isinstance(condition, All):
        known = [
            one for one in (ruled_out(shape, columns, part) for part in condition.parts) if one is not None
        ]
        return reduce(operator.and_, known) if known else None
    if isinstance(condition, Compare):
        at = shape.names.index(condition.column)
        kind = columns.schema.field(at).type
        if kind not in _EXACT:
            return None
        try:
            value = pa.scalar(condition.value)
            value = value if value.type == kind else value.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return _SIGNS[condition.operator](pc.field(columns.names[at]), value)
    return None
