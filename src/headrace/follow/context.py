"""The objects that all sessions of a follower share, and the follower's status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.follow.dead_letters import DeadLetters
from headrace.model.declarations import Flow, View
from headrace.stores.position import Position

__all__ = ["FollowContext", "FollowState", "FollowStatus"]

FollowState = Literal["starting", "following", "rebuilding", "waiting", "stopped"]


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """The current state of a follower, for display. Immutable, so any thread may read it."""

    view: str
    state: FollowState = "starting"
    reason: str = ""
    """Why the follower waits or rebuilds."""
    position: Position | None = None
    """The position of the part that the follower writes."""
    lag: int = 0
    """The number of records not yet applied, as far as known."""
    applied: int = 0
    """The number of records applied since the follower started, including deletions."""
    dead: int = 0
    """The number of dead letters since the follower started."""
    foreign: int = 0
    """The number of records that the flow did not write, since the follower started."""
    repeats: int = 0
    """The number of repeated rows of a real-time flow that were skipped since the follower started."""
    rebuilds: int = 0


@dataclass(frozen=True, slots=True)
class FollowContext:
    """The objects that all sessions of a follower share. ``report`` accepts the changed fields of ``FollowStatus``."""

    view: View
    flows: Sequence[Flow]
    cluster: Cluster
    clock: Clock
    dead_letters: DeadLetters
    report: Callable[..., None]
    max_rows: int
