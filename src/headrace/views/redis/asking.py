"""Questions to a view in Redis: by key at any size, otherwise only where all rows can be looked at in a moment."""

from __future__ import annotations

from typing import Any

from headrace.clock import Clock, SystemClock
from headrace.views.asking import Ask, Asker
from headrace.views.errors import QuestionRefused
from headrace.views.position import Standing
from headrace.views.question import Asked, Question
from headrace.views.redis.keys import Keys
from headrace.views.redis.notes import noted, reads
from headrace.views.redis.row_text import RowText, row_text
from headrace.views.redis.scripts import look_with_row
from headrace.views.redis.server import Server
from headrace.views.rows import Row
from headrace.views.scanning import found_in, within
from headrace.views.store import Part

__all__ = ["RedisAsker"]

_WHOLE_MAX = 10_000
"""So many rows hold up the other users of a server for a few milliseconds."""


class RedisAsker(Asker):
    def __init__(self, address: str, prefix: str, view: str, clock: Clock | None = None) -> None:
        self._keys = Keys(prefix, view)
        self._clock = clock or SystemClock()
        self._server = Server(address, "headrace:reader")
        self.where = f"{self._server.where}, key {self._keys.serving}"

    def close(self) -> None:
        self._server.close()

    def standing(self, view: str) -> Standing | None:
        return _serving(self._server.ask(*reads(self._keys)))

    def ask(self, view: str, ask: Ask, timeout_s: float) -> Asked | None:
        answers = self._server.ask(*reads(self._keys))
        while True:
            standing = _serving(answers)
            if standing is None:
                return None
            question = ask(standing.shape)
            text = row_text(standing.shape)
            if question.key is not None:
                field = text.field(question.key)
                command = look_with_row(self._keys.known, self._keys.serving, self._keys.building, field)
                answers = self._server.ask(*command)
                found = [] if answers[-1] is None else [text.row(answers[-1])]
            else:
                self._expect_small(view, question, noted(answers).found[Part.SERVING])
                answers = self._server.ask(*reads(self._keys, ("HVALS", self._keys.serving)))
                found = answers[-1]
            now = _serving(answers)
            if now is not None and now.shape == standing.shape:
                return self._asked(now, question, text, found, timeout_s)

    def _asked(
        self, standing: Standing, question: Question, text: RowText, found: list[Any], timeout_s: float
    ) -> Asked:
        if question.key is not None:
            return Asked(standing, question, found[: question.limit], False)
        rows: list[Row] = [*within(map(text.row, found), self._clock, timeout_s)]
        return Asked(standing, question, *found_in(standing.shape, rows, question))

    def _expect_small(self, view: str, question: Question, rows: int) -> None:
        if question.words:
            raise QuestionRefused(
                f"view {view!r} has no full-text index: its store is {self.where}",
                hint="keep it in one beside: app.view(..., store=Search())",
            )
        if rows > _WHOLE_MAX:
            raise QuestionRefused(
                f"view {view!r} has {rows} rows in Redis, which finds a row by its key only; others are looked for in"
                f" up to {_WHOLE_MAX} rows",
                hint="ask by key, or keep the view in SQLite or PostgreSQL beside",
            )


def _serving(answers: list[Any]) -> Standing | None:
    return noted(answers[:3]).standing(Part.SERVING)
