"""Answers that were given, kept to be given again: each is right as long as the view has not moved.

An answer follows from the question and from where the view is, and from nothing else. So an answer is kept with the
position that it is of, and given to whoever asks the same while the store still says that position: what was looked for
is spared, looking where the view is is not. Nothing expires and nothing needs to be told; what was asked least recently
makes room.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from headrace.model.view import View
from headrace.serve.route import Answer

__all__ = ["Answers"]

_ONE_BYTES_MAX = 1024 * 1024


class Answers:
    """In one event loop. ``bytes_max`` is for all views together."""

    def __init__(self, views: Iterable[View], bytes_max: int) -> None:
        wanted = [view for view in views if view.cached]
        self._room = {view.name: view.cached for view in wanted}
        self._bytes_max = bytes_max // max(1, len(wanted))
        self._kept: dict[str, OrderedDict[str, tuple[str, Answer]]] = {
            one: OrderedDict() for one in self._room
        }
        self._bytes: Counter[str] = Counter()
        self._given: Counter[str] = Counter()

    def find(self, view: str, question: str, at: str) -> Answer | None:
        """``at`` tells positions apart."""
        kept = self._kept.get(view)
        if kept is None:
            return None
        found = kept.get(question)
        if found is None or found[0] != at:
            return None
        kept.move_to_end(question)
        self._given[view] += 1
        return found[1]

    def keep(self, view: str, question: str, at: str, answer: Answer) -> None:
        kept = self._kept.get(view)
        if kept is None or len(answer.body) > min(_ONE_BYTES_MAX, self._bytes_max):
            return
        before = kept.pop(question, None)
        if before is not None:
            self._bytes[view] -= _size(question, before[1])
        kept[question] = at, answer
        self._bytes[view] += _size(question, answer)
        while len(kept) > self._room[view] or self._bytes[view] > self._bytes_max:
            gone, (_, old) = kept.popitem(last=False)
            self._bytes[view] -= _size(gone, old)

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """By view: answers that are kept, their bytes, and how many were given from here."""
        return {view: (len(kept), self._bytes[view], self._given[view]) for view, kept in self._kept.items()}


def _size(question: str, answer: Answer) -> int:
    return len(question) + len(answer.body)
