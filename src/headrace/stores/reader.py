"""The interface for reading a store. Contract: ``tests/contract/test_store_readers.py``.

A reader never changes the store. Every read returns the rows and the position of the same consistent state. If the
store has a suitable index, the query uses it. Otherwise the reader scans all rows, up to a limit, or raises
``QueryRefused`` with a reason.

``headrace.stores.arrow`` defines bulk reads as Arrow, for SQL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headrace.stores.errors import QueryRefused
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.query import Query, QueryResult
from headrace.stores.rows import Row
from headrace.stores.writer import Part

__all__ = ["QueryBuilder", "Scan", "StoreReader", "StoredView", "no_text_index"]

QueryBuilder = Callable[[ViewSchema], Query]
"""Builds the query from the current schema of the view. If it raises an error, the query ends with that error."""

Scan = AbstractContextManager[tuple[list[str], Iterator[Row]]]
"""The names of the columns, and an iterator that reads the rows one after the other."""


@dataclass(frozen=True, slots=True)
class StoredView:
    """One part of a view in the store."""

    view: str
    part: Part
    state: ViewState


class StoreReader(ABC):
    """Only one thread may use a reader at a time. After a ``StoreError`` the caller closes it and opens another one."""

    where: str
    """The address of the store, for error messages. It contains no password."""

    @abstractmethod
    def state(self, view: str) -> ViewState | None:
        """Return the state of the serving part, or None if the view has no serving part."""

    @abstractmethod
    def query(self, view: str, build: QueryBuilder, timeout_s: float) -> QueryResult | None:
        """Query the serving part. Return None if the view has no serving part.

        Raises ``QueryTimedOut``, or ``QueryRefused`` if the store does not support the query.
        """

    @abstractmethod
    def scan(self, view: str, timeout_s: float, words: str | None = None) -> Scan:
        """Read all rows of the serving part, in any order. With ``words``, read only the matching rows, best first."""

    @abstractmethod
    def views(self) -> list[StoredView]:
        """Return all parts of all views in the store, sorted by name."""

    def parts(self, view: str) -> list[StoredView]:
        """Return the parts of one view."""
        return [stored for stored in self.views() if stored.view == view]

    @abstractmethod
    def count(self, view: str) -> int:
        """Return the number of rows of the serving part."""

    @abstractmethod
    def close(self) -> None: ...


def no_text_index(view: str, where: str) -> QueryRefused:
    return QueryRefused(
        f"view {view!r} has no full-text index; its store is {where}",
        hint="add a view with a full-text index: app.view(..., store=Search())",
    )
