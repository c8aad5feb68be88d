"""A page of a view's rows: what was asked for, as a question to a store, and what came, as an answer."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headrace.serve.cursor import Cursor, place_of, place_text
from headrace.serve.errors import RequestUnfit, ViewMoved
from headrace.serve.filter import filter_of, sort_of
from headrace.serve.key_text import prefix_of, range_of
from headrace.serve.position_json import digest, position_json
from headrace.views.position import Shape
from headrace.views.question import EVERY_ROW, All, Asked, Condition, Question, behind, whole_order
from headrace.views.redis.row_text import row_text

__all__ = ["RowPage"]


@dataclass(frozen=True, slots=True)
class RowPage:
    """``cursor`` has the question; of a first page, with nothing behind which to begin."""

    cursor: Cursor
    limit: int
    same: bool

    @classmethod
    def first(cls, view: str, asked: dict[str, Any], limit: int, *, same: bool) -> RowPage:
        words = asked.get("match")
        if words is not None and (not words.strip() or asked.get("sort") is not None):
            raise RequestUnfit("match takes words, and no sort: the best rows come first")
        cursor = Cursor(
            view,
            "",
            filter=asked.get("filter"),
            sort=asked.get("sort"),
            prefix=asked.get("prefix"),
            begin=asked.get("from"),
            end=asked.get("to"),
            words=words,
        )
        return cls(cursor, limit, same)

    def question(self, shape: Shape) -> Question:
        cursor = self.cursor
        conditions: list[Condition] = []
        if cursor.filter is not None:
            conditions.append(filter_of(cursor.filter, shape))
        if cursor.prefix is not None:
            conditions.append(prefix_of(shape, cursor.prefix))
        if cursor.begin is not None or cursor.end is not None:
            conditions.append(range_of(shape, cursor.begin, cursor.end))
        if cursor.words is not None:
            return Question(self.limit, _all(conditions), words=cursor.words, skip=cursor.skip)
        order = whole_order(shape, sort_of(cursor.sort, shape) if cursor.sort is not None else ())
        if cursor.after:
            conditions.append(behind(order, place_of(shape, order, cursor.after)))
        return Question(self.limit, _all(conditions), order)

    def answer(self, path: str, asked: Asked, bytes_max: int) -> dict[str, Any]:
        """A page of too many bytes ends sooner."""
        shape, position = asked.standing.shape, asked.standing.position
        at = digest(position, shape)
        first = self.cursor.at or at
        if self.same and first != at:
            raise ViewMoved(
                f"view {self.cursor.view!r} is at another position than the first page was",
                hint="begin again with the first page, or leave same=true out",
                members={"position": position_json(position)},
            )
        rows = _bounded(map(row_text(shape).value, asked.rows), bytes_max)
        if len(rows) < len(asked.rows):
            asked = replace(asked, rows=asked.rows[: len(rows)], more=True)
        told: dict[str, Any] = {
            "view": self.cursor.view,
            "position": position_json(position),
            "moved": first != at,
            "rows": rows,
        }
        if asked.more and asked.rows:
            told["next"] = f"{path}?{urllib.parse.urlencode(self._next(asked, first))}"
        return told

    def _next(self, asked: Asked, first: str) -> dict[str, str]:
        if self.cursor.words is not None:
            skip = self.cursor.skip + len(asked.rows)
            cursor = msgspec.structs.replace(self.cursor, at=first, skip=skip)
        else:
            after = place_text(asked.standing.shape, asked.question.order, asked.rows[-1])
            cursor = msgspec.structs.replace(self.cursor, at=first, after=after)
        same = {"same": "true"} if self.same else {}
        return {"cursor": cursor.tell(), "limit": str(self.limit), **same}


def _bounded(rows: Iterator[bytes], bytes_max: int) -> list[msgspec.Raw]:
    """The first ones; always one, if there is one."""
    found: list[msgspec.Raw] = []
    size = 0
    for row in rows:
        size += len(row)
        if size > bytes_max and found:
            break
        found.append(msgspec.Raw(row))
    return found


def _all(conditions: list[Condition]) -> Condition:
    return All(tuple(conditions)) if conditions else EVERY_ROW
