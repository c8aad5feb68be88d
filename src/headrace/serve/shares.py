"""How much of something limited one token may take, so that holders of other tokens find some left.

Where no token is needed there is nobody to share with: then all of it may be taken.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from headrace.serve.errors import ShareTaken

__all__ = ["Shares", "share_of"]


def share_of(total: int, percent: int) -> int:
    return max(1, total * percent // 100)


class Shares:
    """``what`` is taken, for the error. In one event loop."""

    def __init__(self, what: str, total: int, percent: int) -> None:
        self.total = total
        self._what = what
        self._per_token = share_of(total, percent)
        self._taken: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._taken.total()

    @property
    def is_full(self) -> bool:
        return self.count >= self.total

    def expect_share(self, token_id: str) -> None:
        if token_id and self._taken[token_id] >= self._per_token:
            raise ShareTaken(
                f"too many {self._what} with this token (limit {self._per_token})",
                hint="wait until one ends, or raise serve.token_share_percent",
            )

    def take(self, token_id: str) -> None:
        self._taken[token_id] += 1

    def give_back(self, token_id: str) -> None:
        self._taken[token_id] -= 1
        if not self._taken[token_id]:
            del self._taken[token_id]

    @contextlib.contextmanager
    def held(self, token_id: str) -> Iterator[None]:
        self.take(token_id)
        try:
            yield
        finally:
            self.give_back(token_id)
