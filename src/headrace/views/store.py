"""The port to a store: one view in it, and what a follower needs of it. Contract: ``tests/contract/test_stores.py``.

A view has at most two tables in a store, its *parts*. What is read is the one that serves. A rebuild fills another one
beside it, from the first offset, and takes its place in one step when it has come far enough. Each part has its shape
and its position.

Every follower takes an *epoch* when it opens a view, one higher than any before. Whatever changes the view carries a
fence, and the store compares it in the same transaction: an owner that is not the current one is refused, and so is a
generation that is not the part's. So a follower that sleeps inside an ``apply`` and wakes after its replacement changes
nothing, wherever it slept.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.views.changes import Changes
from headrace.views.errors import StaleWriter, StoreReplaced
from headrace.views.position import Position, Shape, Standing
from headrace.views.rows import Row

__all__ = ["Fence", "Owner", "Part", "Refusals", "Store", "next_owner", "refuse_stale"]


class Part(enum.StrEnum):
    SERVING = "serving"
    BUILDING = "building"


@dataclass(frozen=True, slots=True)
class Owner:
    """``name`` is the follower's alone: after a store was restored from a backup an epoch may be given out again."""

    epoch: int
    name: str

    def __str__(self) -> str:
        return f"epoch {self.epoch} ({self.name})"


@dataclass(frozen=True, slots=True)
class Fence:
    owner: Owner
    generation: int


@dataclass(frozen=True, slots=True)
class Refusals:
    """Each raises ``ValueDoesNotFit`` for what cannot be held."""

    row: Callable[[Row], None]
    key: Callable[[Row], None]
    """Of a row to be deleted; in the order of the view's key."""


class Store(ABC):
    """One view. Not for several threads."""

    view: str
    rows_at_once: int = 0
    """How many rows a transaction should take where there are as many: more than was asked for, where each is dear."""
    stop: threading.Event | None = None
    """Set when its follower is to end: a server that does not answer is not waited for then."""

    @property
    def is_stopping(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    @abstractmethod
    def take(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        """Become the owner; who was it before is refused from now on.

        ``before`` is who the follower was when it last had the store open: if another took the view since, it is that
        one's, and this is refused. ``name`` is nobody else's; it is the same in a second try, if the end of the first
        was not heard.
        """

    @abstractmethod
    def standing(self, part: Part) -> Standing | None: ...

    def refusals(self, shape: Shape) -> Refusals | None:
        """What finds values that a schema allows and this store cannot hold, each then a dead letter of the view; None
        if there are none. ``apply`` is given rows and keys that have passed it.
        """
        return None

    @abstractmethod
    def begin(self, shape: Shape, position: Position, reason: str, fence: Fence) -> Standing:
        """An empty part beside what serves, in the place of one that was begun before."""

    @abstractmethod
    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        """All of it or nothing: the rows, and the position behind them. ``before`` must be where the part is."""

    @abstractmethod
    def swap(self, fence: Fence) -> None:
        """What was built serves from now on, and what served is gone."""

    @abstractmethod
    def drop_building(self, fence: Fence) -> None:
        """Give up what was begun."""

    @abstractmethod
    def ask_rebuild(self) -> None:
        """Wish for a rebuild; whoever follows the view sees it by ``wish``."""

    @abstractmethod
    def wish(self) -> int:
        """How often a rebuild was asked for."""

    @abstractmethod
    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        """In the order of the key."""

    @abstractmethod
    def close(self) -> None: ...


def next_owner(view: str, name: str, current: Owner | None, before: Owner | None) -> Owner:
    """A store that is older than ``before`` was restored or begun anew, and has not been taken by another. One that is
    this ``name``'s was taken in a try of which it did not hear the end.
    """
    mine = current is None or current == before or current.name == name
    if not mine and current is not None and before is not None and current.epoch >= before.epoch:
        refuse_stale(view, Fence(before, 0), current, None)
    return Owner(max(current.epoch if current else 0, before.epoch if before else 0) + 1, name)


def refuse_stale(view: str, fence: Fence, current: Owner | None, generation: int | None) -> None:
    """Raises unless the fence is that of the current owner, at the generation that the part has.

    A store that knows no owner, or an older one, is not another's: it was wiped, or put back, or has lost its last
    commits with its server. Its follower takes it again.
    """
    if current is None or current.epoch < fence.owner.epoch:
        raise StoreReplaced(
            f"view {view!r} belongs to {current or 'nobody'}, and it was taken by {fence.owner}",
            hint="was the store wiped, or put back from a backup? It goes on from what is there, or builds again",
        )
    if current != fence.owner:
        raise StaleWriter(
            f"view {view!r}: a write of {fence.owner} at generation {fence.generation} is refused, the view belongs to"
            f" {current} at generation {'none' if generation is None else generation}",
            hint="another follower took the view over; let one of them run",
        )
    if generation is not None and generation != fence.generation:
        raise StaleWriter(
            f"view {view!r}: a write of generation {fence.generation} by {fence.owner} is refused, the store is at"
            f" generation {generation} by {current}",
            hint="the flow was rebuilt; its followers build the view anew",
        )
