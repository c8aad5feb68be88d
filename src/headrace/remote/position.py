"""What an answer reflects."""

from __future__ import annotations

import msgspec

__all__ = ["Position"]


class Position(msgspec.Struct, frozen=True):
    """All of the topic before these offsets, and nothing behind them."""

    token: str
    """For ``after``: what is read with it shows no less."""
    topic: str = ""
    offsets: dict[str, int] = {}
    """By the number of the partition."""
    generation: int | None = None
    batch: int | None = None
    stored: str | None = None
