"""The port to a store for questions: rows and position as of one moment. Contract: ``tests/contract/test_asking.py``.

What a store can find by itself is asked of it; the rest is read and sorted out here, within bounds, or refused with the
reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from headrace.views.position import Shape, Standing
from headrace.views.question import Asked, Question

__all__ = ["Ask", "Asker"]

Ask = Callable[[Shape], Question]
"""Makes the question of what the view's columns are at that moment; what it raises ends the asking."""


class Asker(ABC):
    """For one thread at a time. After an error of the store it is closed and another one opened."""

    where: str
    """The store, as it is shown: no passwords."""

    @abstractmethod
    def standing(self, view: str) -> Standing | None:
        """Of what serves; None if nothing does."""

    @abstractmethod
    def ask(self, view: str, ask: Ask, timeout_s: float) -> Asked | None:
        """None if nothing serves. Raises ``QueryTimedOut`` for what takes longer, ``QuestionRefused`` for what the
        store does not answer.
        """

    @abstractmethod
    def close(self) -> None: ...
