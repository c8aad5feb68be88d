"""Where records are that were written, and the answer that says so: the same bytes whenever it is given."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.serve.token import Reach, Token

__all__ = ["Written"]


class Written(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    places: list[tuple[int, int]]
    """Partition and offset of each record, in their order."""

    @property
    def token(self) -> str:
        ends: dict[int, int] = {}
        for number, offset in self.places:
            ends[number] = max(offset + 1, ends.get(number, 0))
        return Token.of({self.topic: Reach(self.topic_id, dict(sorted(ends.items())))}).tell()

    def told(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "records": [{"partition": number, "offset": offset} for number, offset in self.places],
            "token": self.token,
        }
