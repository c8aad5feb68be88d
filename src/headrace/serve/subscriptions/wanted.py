"""What a subscriber wants to hear of: a view, or the rows of it that a query leaves; perhaps only the first of them."""

from __future__ import annotations

import dataclasses
import hashlib

import msgspec

from headrace.serve.cursor import Cursor
from headrace.serve.errors import RequestUnfit
from headrace.serve.row_page import RowPage
from headrace.views.asking import Ask
from headrace.views.position import Shape
from headrace.views.question import EVERY_ROW, By, Condition, Question

__all__ = ["LIMIT_MAX", "Wanted"]

LIMIT_MAX = 1_000
_KEYS = ("prefix", "begin", "end")
_BY_ROW = ("view", "filter", *_KEYS)
_OTHERS = ("words", "sort", "limit")


class Wanted(msgspec.Struct, frozen=True):
    view: str
    """As it was asked for."""
    filter: str | None = None
    prefix: str | None = None
    begin: str | None = None
    end: str | None = None
    words: str | None = None
    sort: str | None = None
    limit: int | None = None
    """Only the first rows by ``sort``, or by key."""

    def expect_fit(self) -> None:
        """Raises for what no view can be asked, whatever its columns."""
        if self.words is not None and not self.words.strip():
            raise RequestUnfit("match takes words")
        if self.limit is not None and not 1 <= self.limit <= LIMIT_MAX:
            raise RequestUnfit(f"limit must be a whole number from 1 to {LIMIT_MAX}")
        if self.words is not None and self.limit is not None and self.sort is None:
            raise RequestUnfit(
                "match with a limit takes a sort too: which rows are the best follows from all others, and is not told",
                hint="say by which columns, as in sort=-price, or leave limit out",
            )

    @property
    def digest(self) -> bytes:
        told = {name: getattr(self, name) for name in _BY_ROW}
        told |= {name: one for name in _OTHERS if (one := getattr(self, name)) is not None}
        return hashlib.sha256(msgspec.msgpack.encode(told)).digest()[:8]

    def condition(self, shape: Shape) -> Condition:
        """But for the words. Raises what the routes of rows raise, for what cannot be read."""
        asked = any(getattr(self, name) is not None for name in ("filter", *_KEYS))
        return self.question("", 1)(shape).where if asked else EVERY_ROW

    def key_condition(self, key_shape: Shape) -> Condition:
        """What of it is about keys alone, so that it can be asked of rows that are gone too."""
        return Wanted(self.view, None, self.prefix, self.begin, self.end).condition(key_shape)

    def order(self, shape: Shape) -> tuple[By, ...]:
        return self.question("", 1)(shape).order

    def question(self, after: str, limit: int) -> Ask:
        """For the rows, in their order, behind a place in it."""
        cursor = Cursor(
            self.view,
            "",
            after=after,
            filter=self.filter,
            sort=self.sort,
            prefix=self.prefix,
            begin=self.begin,
            end=self.end,
        )
        page = RowPage(cursor, limit, same=False)

        def ask(shape: Shape) -> Question:
            return dataclasses.replace(page.question(shape), words=self.words or "")

        return ask
