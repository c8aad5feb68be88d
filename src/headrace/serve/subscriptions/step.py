"""A step: what the log has between two places, as changes of rows. A flow's batch, or whatever came at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.serve.subscriptions.place import Place
from headrace.views.rows import Row

__all__ = ["Change", "Step"]

_OVERHEAD_BYTES = 250
"""Of a change, as Python holds it."""


class Change(NamedTuple):
    key: bytes
    """As messages have it: a JSON object of the columns of the key."""
    key_values: Row
    row: bytes | None
    """As messages have it; None if there is none any more."""
    values: Row | None
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    before: Place
    after: Place
    changes: list[Change]
    """In the order of the log; a key may be there more than once."""

    @property
    def size_bytes(self) -> int:
        return (
            sum(len(one.key) + len(one.row or b"") * 2 + _OVERHEAD_BYTES for one in self.changes)
            + 2 * _OVERHEAD_BYTES
        )
