"""Conversations about a view's rows: one, a page, all of one position."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.remote.columns import Columns
from headrace.remote.errors import AnswerUnfit, Moved, NotThere
from headrace.remote.exchange import Reply, Steps, json_of
from headrace.remote.page import Page, Table
from headrace.remote.plain import key_text
from headrace.remote.position import Position
from headrace.remote.session import After, Session, expect_ours, expect_positive, quoted

__all__ = ["Question", "going_on", "page", "row", "table"]

_PAGE_ROWS = 1_000
_TABLE_PAGE_ROWS = 10_000
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Question:
    """Which rows of which view. ``begin`` and ``end`` are keys."""

    view: str
    filter: str | None = None
    sort: str | None = None
    prefix: Any = None
    begin: Any = None
    end: Any = None
    match: str | None = None
    limit: int | None = None
    """All pages together."""
    page_rows: int | None = None
    after: After = ""
    wait_s: float | None = None

    def __post_init__(self) -> None:
        expect_positive("limit", self.limit)
        expect_positive("page_rows", self.page_rows)

    @property
    def path(self) -> str:
        return f"/v1/views/{quoted(self.view)}/rows"

    def query(self) -> dict[str, Any]:
        keys = {"prefix": self.prefix, "from": self.begin, "to": self.end}
        return {
            "filter": self.filter,
            "sort": self.sort,
            "match": self.match,
            **{name: None if key is None else key_text(key) for name, key in keys.items()},
        }


class _Page(msgspec.Struct, frozen=True):
    position: Position
    rows: list[msgspec.Raw]
    moved: bool = False
    next: str | None = None


class _Row(msgspec.Struct, frozen=True):
    position: Position
    row: msgspec.Raw


def row(session: Session, view: str, key: Any, after: After, wait_s: float | None) -> Steps:
    """The row and its position, or None and the position at which there is none."""
    text = key_text(key)
    if text in ("", ".", ".."):
        # A path cannot end in these: what lies between takes them for steps.
        columns: Columns = yield from session.columns(view)
        name = columns.key[0].replace("`", "``")
        asked = Question(view, f"`{name}` = {json.dumps(text)}", after=after, wait_s=wait_s, limit=1)
        found: Page[dict[str, Any]] = yield from page(session, asked, None, 1)
        return (found.rows[0] if found.rows else None), found.position
    path = f"/v1/views/{quoted(view)}/rows/{quoted(text)}"
    try:
        reply: Reply = yield from session.read(view, path, {}, after, wait_s)
    except NotThere as error:
        if error.position is None:
            # The view is not there.
            raise
        return None, error.position
    told: _Row = json_of(reply, _Row)
    _, rows = yield from session.rows(view, told.position.generation, [told.row])
    return rows[0], told.position


def page(
    session: Session,
    question: Question,
    following: str | None,
    rows: int | None = None,
    *,
    same: bool = False,
) -> Steps:
    """The first page, or the one that an earlier one named."""
    found, _ = yield from _page(session, question, following, rows, same)
    return found


def _page(session: Session, question: Question, following: str | None, rows: int | None, same: bool) -> Steps:
    query: Mapping[str, Any] = {}
    if following is None:
        size = rows or question.page_rows or _PAGE_ROWS
        query = {
            **question.query(),
            "limit": min(size, question.limit or size),
            **({"same": True} if same else {}),
        }
    path = question.path if following is None else expect_ours(following)
    reply: Reply = yield from session.read(question.view, path, query, question.after, question.wait_s)
    told: _Page = json_of(reply, _Page)
    columns, made = yield from session.rows(question.view, told.position.generation, told.rows)
    return Page(made, told.position, told.moved, told.next), columns


def going_on(this: str | None, following: str | None) -> str | None:
    """The link to the next page; one to the same page would lead nowhere for ever."""
    if following is not None and following == this:
        raise AnswerUnfit(f"the server's link leads to the same page again: {following[:100]!r}")
    return following


def table(session: Session, question: Question) -> Steps:
    """All rows, of one position: begun again when the view moves on between two pages."""
    for number in range(_TRIES):
        rows: list[dict[str, Any]] = []
        following: str | None = None
        try:
            while True:
                found, columns = yield from _page(
                    session, question, following, question.page_rows or _TABLE_PAGE_ROWS, True
                )
                rows += found.rows
                following = going_on(following, found.next)
                if following is None or (question.limit is not None and len(rows) >= question.limit):
                    taken = rows if question.limit is None else rows[: question.limit]
                    return Table(columns, taken, {question.view: found.position})
        except Moved as moved:
            if number == _TRIES - 1:
                moved.hint = (
                    "the view moves faster than all its rows can be read: ask for fewer, iterate over pages, or"
                    " follow it with changes()"
                )
                raise
    raise AssertionError("unreachable")
