"""The note that a letter was written back: a record of topic ``headrace.replays.<app>``, in the transaction of the
record that was written. The key is the letter's id; the last one of a key counts.
"""

from __future__ import annotations

import msgspec

from headrace.ops.dead.letter import Origin, Place

__all__ = ["Mark", "marks_topic"]


class Mark(msgspec.Struct, frozen=True):
    letter: Place
    origin: Origin
    to: Place
    """Where the record is now."""
    at_ms: int
    job: str
    """Which replay it was: one that is taken up again after an error does not write twice what was asked for again."""


def marks_topic(app: str) -> str:
    return f"headrace.replays.{app}"
