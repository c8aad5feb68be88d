"""The interface for writing one view to a store. Contract: ``tests/contract/test_stores.py``.

A view has at most three *parts* in a store. Readers read the serving part. A rebuild fills the building part from the
first offset. When the building part has caught up, it replaces the serving part atomically. The kept part is a former
serving part. A follower can continue to apply changes to it, so that it can serve again within a second. Each part has
its own schema and position.

The process that writes a view is its follower. A follower claims the view when it opens the store. It then is the
*owner*, with a higher epoch than all earlier owners. Every write carries a fence, and the store checks the fence in the
same transaction. It rejects a writer that is not the current owner, and a generation that is not the part's generation.
So if a follower stalls inside ``apply`` and another follower claims the view, the stalled write changes nothing.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from headrace.model.names import NAME_CHARS_MAX, name_fault, table_fault
from headrace.stores.errors import NameRefused, NoKeptPart, PositionMoved, StaleWriter, StoreReplaced
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row

__all__ = [
    "VIEW_NAME_CHARS_MAX",
    "Changes",
    "Fence",
    "Owner",
    "Part",
    "RowLimits",
    "StoreWriter",
    "check_droppable",
    "check_fence",
    "check_kept",
    "check_position",
    "check_view_name",
    "next_owner",
]

VIEW_NAME_CHARS_MAX = NAME_CHARS_MAX - len(".dead")
"""The name of the dead-letter topic ``<view>.dead`` must also be a valid topic name."""


class Part(enum.StrEnum):
    SERVING = "serving"
    BUILDING = "building"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Owner:
    """``name`` is unique per follower. The epoch alone is not enough, because a store that was restored from a backup
    can assign the same epoch again.
    """

    epoch: int
    name: str

    def __str__(self) -> str:
        return f"epoch {self.epoch} ({self.name})"


@dataclass(frozen=True, slots=True)
class Fence:
    owner: Owner
    generation: int


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Checks for values that the schema allows but the store does not. Each check raises ``ValueDoesNotFit``."""

    check_row: Callable[[Row], None]
    check_key: Callable[[Row], None]
    """Checks the key of a deleted row. The values are in the order of the view's key."""


class Changes:
    """The changes of one batch. It stores only the last change of each key: a row or a deletion."""

    def __init__(self, schema: ViewSchema) -> None:
        indexes = schema.key_indexes
        self._has_single_key = len(indexes) == 1
        self._key_of: Callable[[Row], Any] = itemgetter(*indexes)
        self._last: dict[Any, Row | None] = {}
        self.events = 0
        """The number of records, including those that a later record with the same key replaced."""

    def __len__(self) -> int:
        return len(self._last)

    def put(self, row: Row) -> None:
        self._last[self._key_of(row)] = row
        self.events += 1

    def put_all(self, rows: Sequence[Row]) -> None:
        """Add the rows in their order."""
        self._last.update(zip(map(self._key_of, rows), rows, strict=True))
        self.events += len(rows)

    def remove(self, key: Row) -> None:
        self._last[key[0] if self._has_single_key else key] = None
        self.events += 1

    @property
    def upserts(self) -> list[Row]:
        return [row for row in self._last.values() if row is not None]

    @property
    def deletes(self) -> list[Row]:
        """The deleted keys, with values in the order of the view's key."""
        deleted = (key for key, row in self._last.items() if row is None)
        return [(key,) for key in deleted] if self._has_single_key else list(deleted)


class StoreWriter(ABC):
    """Writes one view. Only one thread may use it."""

    view: str
    rows_at_once: int = 0
    """Raises the follower's limit of rows per transaction to at least this number, for stores with expensive
    transactions. 0 leaves the limit unchanged.
    """
    stop: threading.Event | None = None
    """Set when the follower must stop. The writer then does not wait for a server that does not respond."""

    @property
    def is_stopping(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    @abstractmethod
    def claim(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        """Become the owner. From then on the store rejects all earlier owners.

        ``before`` is the ownership that this follower claimed last. If another follower has claimed the view since,
        this call fails. ``name`` is unique to the follower. It remains the same in a retry after a lost response.
        """

    @abstractmethod
    def state(self, part: Part) -> ViewState | None: ...

    def limits(self, schema: ViewSchema) -> RowLimits | None:
        """Return the store's checks, or None if the store accepts every value of the schema.

        The follower writes a dead letter for each value that fails a check. It calls ``apply`` only with rows and keys
        that passed.
        """
        return None

    @abstractmethod
    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        """Create an empty building part. It replaces an earlier building part. Its generation may be older than that of
        the serving part, because an operator can switch back to an older generation.
        """

    @abstractmethod
    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        """Write the changes and the position ``after`` atomically. ``before`` must be the part's current position."""

    @abstractmethod
    def swap(self, fence: Fence, keep: bool = False) -> None:
        """Make the building part the serving part, atomically.

        With ``keep``, the old serving part becomes the kept part and replaces an earlier one. If no old serving part
        exists, or if it has a fault (``ViewState.fault``), an earlier kept part remains. Without ``keep``, delete the
        old serving part; an earlier kept part remains.
        """

    @abstractmethod
    def swap_back(self, fence: Fence) -> None:
        """Exchange the kept part and the serving part, atomically. The fence has the generation of the kept part.

        A serving part that has a fault is deleted instead. The building part does not change. A rebuild request that
        the former serving part fulfilled is not pending again. Raises ``NoKeptPart``.
        """

    @abstractmethod
    def drop(self, part: Part, fence: Fence) -> None:
        """Delete the building part or the kept part, if it exists. Raises ``ValueError`` for the serving part."""

    @abstractmethod
    def request_rebuild(self) -> None:
        """Request a rebuild. The follower of the view detects the request by ``rebuild_requests``."""

    @abstractmethod
    def rebuild_requests(self) -> int:
        """Return how often a rebuild was requested."""

    @abstractmethod
    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        """Return the rows in the order of the key."""

    @abstractmethod
    def close(self) -> None: ...


def next_owner(view: str, name: str, current: Owner | None, before: Owner | None) -> Owner:
    """Return the owner to store for a claim.

    If the store's epoch is lower than that of ``before``, the store was restored or recreated, and no other follower
    has claimed it. If ``name`` already owns the store, an earlier claim succeeded but its response was lost.
    """
    is_mine = current is None or current == before or current.name == name
    if not is_mine and current is not None and before is not None and current.epoch >= before.epoch:
        check_fence(view, Fence(before, 0), current, None)
    return Owner(max(current.epoch if current else 0, before.epoch if before else 0) + 1, name)


def check_fence(view: str, fence: Fence, current: Owner | None, generation: int | None) -> None:
    """Raise unless the fence has the current owner and the part's generation.

    If the store has no owner or an older owner, no other follower has claimed it. The store was wiped or restored, or
    its server lost the last commits. The follower then claims the view again.
    """
    if current is None or current.epoch < fence.owner.epoch:
        raise StoreReplaced(
            f"the stored owner of view {view!r} is {current or 'none'}, but {fence.owner} had claimed the view",
            hint="the store was probably wiped or restored from a backup; the follower continues from the store's"
            " position, or rebuilds the view",
        )
    if current != fence.owner:
        raise StaleWriter(
            f"view {view!r}: rejected a write by {fence.owner} at generation {fence.generation}: the owner is"
            f" {current} at generation {'none' if generation is None else generation}",
            hint="another follower claimed the view; run only one follower",
        )
    if generation is not None and generation != fence.generation:
        raise StaleWriter(
            f"view {view!r}: rejected a write of generation {fence.generation} by {fence.owner}: the store is at"
            f" generation {generation} by {current}",
            hint="the flow was rebuilt; its followers rebuild the view",
        )


def check_position(view: str, where: str, before: Position | None, current: Position | None) -> None:
    """Raise unless the part exists and is at the position ``before``. If ``before`` is None, any position is valid."""
    if current is None or (before is not None and current != before):
        raise PositionMoved(
            f"view {view!r} in {where} is not at the position that its follower wrote last",
            detail=f"expected {before}, found {current}",
            hint="the store was probably restored from a backup; the follower continues from the store's position",
        )


def check_kept(view: str, where: str, fence: Fence, current: Owner | None, kept: Position | None) -> None:
    """Raise unless the fence is current and the kept part exists."""
    check_fence(view, fence, current, kept.generation if kept else None)
    if kept is None:
        raise NoKeptPart(
            f"view {view!r} in {where} has no kept part, so it cannot be switched back",
            hint="rebuild the view with the earlier flow instead",
        )


def check_droppable(view: str, part: Part) -> None:
    if part is Part.SERVING:
        raise ValueError(f"the serving part of view {view!r} cannot be dropped")


def check_view_name(name: str) -> None:
    """Raise unless the name is valid. It must be a topic name and must not be reserved for a store's own tables."""
    fault = name_fault(name) or table_fault(name)
    if fault is None and len(name) > VIEW_NAME_CHARS_MAX:
        fault = f"the name of a view has at most {VIEW_NAME_CHARS_MAX} characters, this one has {len(name)}"
    if fault is not None:
        raise NameRefused(f"invalid view name: {fault[:400]}", hint="use letters, digits, '.', '_' and '-'")
