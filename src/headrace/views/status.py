"""What a follower is doing, for displays: a new object each time, so that any thread may look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.views.position import Position

__all__ = ["State", "Status"]

State = Literal["starting", "following", "rebuilding", "waiting", "stopped"]


@dataclass(frozen=True, slots=True)
class Status:
    view: str
    state: State = "starting"
    reason: str = ""
    """Why it waits or rebuilds."""
    position: Position | None = None
    """Of the part that is being written."""
    lag: int = 0
    """In events, as far as the log has told."""
    applied: int = 0
    """Events since this follower started, deletions included."""
    dead: int = 0
    """Dead letters since this follower started."""
    foreign: int = 0
    """Records among those of its flow that the flow has not written, since this follower started."""
    repeats: int = 0
    """Rows that a flow in real time had written before, and that were left out, since this follower started."""
    rebuilds: int = 0
