"""Results of the client's calls: pages and tables of rows, changes of a view, and results of writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from headrace.remote.columns import Columns, data_frame
from headrace.remote.errors import Position

__all__ = ["Change", "LiveRows", "Page", "RecordId", "Table", "Tally", "Written", "WrittenMany"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Rows from one position."""

    rows: list[R]
    position: Position
    moved: bool
    """Whether the view's position has changed since the first page."""
    next: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of a query, with their columns and positions."""

    columns: Columns
    rows: list[dict[str, Any]]
    positions: dict[str, Position]
    """Positions by view."""

    def arrow(self) -> Any:
        """Return a ``pyarrow.Table``. Its schema metadata contains the positions."""
        tokens = {f"headrace.position.{view}": position.token for view, position in self.positions.items()}
        return self.columns.arrow(self.rows, tokens)

    def pandas(self) -> Any:
        """Return a ``pandas.DataFrame``. Its ``attrs`` contain the positions."""
        return data_frame(self.arrow())

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Change(Generic[R]):
    """All changes of the view between two positions.

    If ``whole`` is true, ``rows`` are all rows of the view; discard the earlier rows. Otherwise, ``rows`` replace the
    rows with the same keys, and ``gone`` are the keys of deleted rows.
    """

    whole: bool
    rows: list[R]
    gone: list[dict[str, Any]]
    position: Position
    cursor: str
    """Pass it to resume after this change, also in another process."""
    keys: list[tuple[Any, ...]]
    """The keys of ``rows``, in the same order."""
    key: tuple[str, ...]
    """The names of the key columns."""


class LiveRows(Mapping[tuple[Any, ...], R]):
    """The rows after the last change, by key (a tuple of the key columns)."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], R] = {}
        self.position: Position | None = None
        self.cursor: str | None = None

    def apply(self, change: Change[R]) -> None:
        if change.whole:
            self._rows = {}
        self._rows.update(zip(change.keys, change.rows, strict=True))
        for gone in change.gone:
            self._rows.pop(tuple(gone[name] for name in change.key), None)
        self.position, self.cursor = change.position, change.cursor

    def __getitem__(self, key: tuple[Any, ...]) -> R:
        return self._rows[key]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class RecordId(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class Written(msgspec.Struct, frozen=True):
    topic: str
    records: list[RecordId]
    """Where each value was written, in the order of the values."""
    token: str
    """Pass it as ``after``, in any client: the read then reflects this write."""
    request: str = ""
    """The Idempotency-Key of the request."""
    repeated: bool = False
    """Whether an earlier request with the same key wrote the records."""


class WrittenMany(msgspec.Struct, frozen=True):
    topic: str
    records: int
    requests: int
    """Number of requests."""
    repeated: int
    """Number of requests that an earlier call had already completed."""
    token: str
    """Pass it as ``after``: the read then reflects all these writes."""
    request: str
    """Pass it to repeat the call safely."""


class Tally:
    """Adds up the results of several writes."""

    def __init__(self, topic: str, request: str) -> None:
        self.topic = topic
        self.request = request
        self.records = self._requests = self._repeated = 0
        self._tokens: dict[int, str] = {}
        """The newest token of each partition."""

    def add(self, written: Written) -> None:
        self.records += len(written.records)
        self._requests += 1
        self._repeated += written.repeated
        self._tokens.update({record.partition: written.token for record in written.records})

    def total(self) -> WrittenMany:
        token = ",".join(dict.fromkeys(self._tokens.values()))
        return WrittenMany(self.topic, self.records, self._requests, self._repeated, token, self.request)
