"""A view without a store: every query reads the whole topic and computes the last row of each key.

The position of the result is the end of the topic at the time of the read. During the read, compaction may remove a
record because a newer record of its key arrived after that end. So the read of a compacted topic continues until no new
records have arrived. If that takes too long, the query times out instead of returning a wrong result. A value that does
not fit the schema is counted and skipped. Queries do not write dead letters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.clock import Clock, SystemClock
from headrace.follow.origin import NotReady, Origin, find_origin
from headrace.follow.rebuild import retention_of
from headrace.model.declarations import Flow, View
from headrace.model.errors import ValueDoesNotFit
from headrace.stores.errors import QueryFailed, QueryRefused, QueryTimedOut
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.query import Query, QueryResult, key_equals, order_by_key
from headrace.stores.reader import QueryBuilder, StoredView, StoreReader, no_text_index
from headrace.stores.rows import Row, RowDecoder
from headrace.stores.scan import select_rows
from headrace.stores.writer import Part

__all__ = ["OnReadReader"]

_RECORDS_PER_CLOCK_READ = 500
_COUNT_TIMEOUT_S = 60.0

Offsets = dict[int, int]


class OnReadReader(StoreReader):
    def __init__(
        self,
        cluster: Cluster,
        view: View,
        flows: Sequence[Flow],
        records_max: int,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._flows = flows
        self._records_max = records_max
        self._clock = clock or SystemClock()
        self.where = f"topic {view.topic.name!r}"

    def close(self) -> None:
        """Do nothing: no resources are open between queries."""

    def _origin(self) -> Origin | None:
        origin = find_origin(self._cluster, self._view, self._flows)
        return None if isinstance(origin, NotReady) else origin

    # State

    def state(self, view: str) -> ViewState | None:
        origin = self._origin()
        return None if origin is None else self._state(origin, self._cluster.ends(origin.topic), 0)

    def _state(self, origin: Origin, ends: Offsets, dead: int) -> ViewState:
        now = self._clock.now_ms()
        position = Position(origin.topic, origin.topic_id, ends, complete_ms=now, stored_ms=now, dead=dead)
        return ViewState(origin.schema, position, 0, "computed on read")

    def views(self) -> list[StoredView]:
        state = self.state(self._view.name)
        return [] if state is None else [StoredView(self._view.name, Part.SERVING, state)]

    def count(self, view: str) -> int:
        origin = self._origin()
        return 0 if origin is None else len(self._fold(origin, _COUNT_TIMEOUT_S)[0].rows)

    # Rows

    def query(self, view: str, build: QueryBuilder, timeout_s: float) -> QueryResult | None:
        origin = self._origin()
        if origin is None:
            return None
        query = build(origin.schema)
        if query.words:
            raise no_text_index(view, self.where)
        fold, ends = self._fold(origin, timeout_s)
        rows, has_more = select_rows(origin.schema, fold.rows.values(), _without_key(origin.schema, query))
        return QueryResult(self._state(origin, ends, fold.dead), query, rows, has_more)

    @contextlib.contextmanager
    def scan(
        self, view: str, timeout_s: float, words: str | None = None
    ) -> Iterator[tuple[list[str], Iterator[Row]]]:
        if words is not None:
            raise no_text_index(view, self.where)
        origin = self._origin()
        if origin is None:
            raise QueryFailed(f"{self.where} does not serve view {view!r} yet")
        fold, _ = self._fold(origin, timeout_s)
        yield list(origin.schema.names), iter(fold.rows.values())

    def _fold(self, origin: Origin, timeout_s: float) -> tuple[_Fold, Offsets]:
        deadline = self._clock.steady() + timeout_s
        fold = _Fold(origin)
        compacted = retention_of(self._cluster, origin.topic).compacted
        starts, ends = self._cluster.starts(origin.topic), self._cluster.ends(origin.topic)
        while True:
            self._check_size(fold.records + sum(max(0, ends[number] - starts[number]) for number in starts))
            ranges = {number: (offset, ends[number]) for number, offset in starts.items()}
            for number, message in enumerate(read(self._cluster, origin.topic, ranges)):
                if number % _RECORDS_PER_CLOCK_READ == 0 and self._clock.steady() > deadline:
                    raise QueryTimedOut(timeout_s)
                fold.add(message.key(), message.value())
            starts, ends = ends, self._cluster.ends(origin.topic) if compacted else ends
            if starts == ends:
                return fold, ends
            if self._clock.steady() > deadline:
                raise QueryTimedOut(timeout_s)

    def _check_size(self, records: int) -> None:
        if records > self._records_max:
            raise QueryRefused(
                f"view {self._view.name!r} is computed on read from at most {self._records_max} records, but the topic"
                f" has {records}",
                hint="declare a store for the view, or increase OnRead(records_max=...)",
            )


class _Fold:
    """Computes the last row of each key."""

    def __init__(self, origin: Origin) -> None:
        self.rows: dict[Row, Row] = {}
        self.records = 0
        self.dead = 0
        self._decoder = RowDecoder(origin.schema, origin.topic_key, origin.upcast)
        self._key_indexes = origin.schema.key_indexes

    def add(self, key: Any, value: Any) -> None:
        self.records += 1
        try:
            if value is None:
                self.rows.pop(self._decoder.key(key), None)
            else:
                row = self._decoder.row(value)
                self.rows[tuple(row[at] for at in self._key_indexes)] = row
        except ValueDoesNotFit:
            self.dead += 1


def _without_key(schema: ViewSchema, query: Query) -> Query:
    """Convert the key lookup of a query to a condition."""
    if query.key is None:
        return query
    return Query(query.limit, key_equals(schema, query.key), order_by_key(schema))
