"""Reads views in full-text indexes: by words, by key, and by a scan of up to 100,000 rows.

``Snapshot`` is one commit of an index. Its rows match its state, even if a follower writes at the same time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import tantivy

from headrace.stores.catalog import Catalog, CatalogFolder, CatalogReader
from headrace.stores.errors import QueryFailed, QueryRefused, StoreReplaced, StoreUnusable
from headrace.stores.file_errors import translate_errors
from headrace.stores.position import ViewState
from headrace.stores.query import Query, QueryResult
from headrace.stores.reader import QueryBuilder
from headrace.stores.rows import Row
from headrace.stores.scan import predicate_for, select_rows, with_deadline
from headrace.stores.search.layout import (
    BUCKET,
    BUCKETS,
    CATALOG,
    KEY,
    ROW,
    STATE_KEY,
    TOKENIZER,
    Documents,
    StateDocument,
    analyzer,
)
from headrace.stores.search.words import invalid_query_error, parse_words
from headrace.stores.writer import Part

__all__ = ["SearchReader", "Snapshot", "open_index"]

_ATTEMPTS_MAX = 20
_SCAN_ROWS_MAX = 100_000
_MATCHES_MAX = 10_000
_ROWS_PER_QUERY = 20_000


def open_index(folder: Path) -> tantivy.Index:
    """Open the index. Raise FileNotFoundError if the index does not exist."""
    if not (folder / "meta.json").exists():
        raise FileNotFoundError(2, "no index", str(folder))
    index = tantivy.Index.open(str(folder))
    index.register_tokenizer(TOKENIZER, analyzer())
    return index


class Snapshot:
    """One commit of an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with translate_errors(folder):
            self._index = open_index(folder)
            self._searcher = self._index.searcher()
            addresses = self._search(self._term(STATE_KEY), 1)
            if not addresses:
                raise ValueError("the index has no position")
            self.state_document = msgspec.json.decode(self._stored(addresses[0]), type=StateDocument)
        self.state = self.state_document.state
        self.documents = Documents(self.state.schema, self.state.searched)

    def count(self) -> int:
        return int(self._searcher.num_docs) - 1

    def rows(self) -> Iterator[Row]:
        """Yield all rows in any order."""
        with translate_errors(self.folder):
            for query in self._bucket_queries():
                for address in self._search_all(query):
                    yield self.documents.decode(self._stored(address))

    def row(self, key: Row) -> Row | None:
        with translate_errors(self.folder):
            addresses = self._search(self._term(self.documents.term(key)), 1)
            return self.documents.decode(self._stored(addresses[0])) if addresses else None

    def matching(self, words: str, limit: int) -> Iterator[Row]:
        """Yield the matching rows, best matches first. Raise ValueError if ``words`` is not a valid query."""
        query = parse_words(self._index, words, self.documents.names)
        query = query.and_must_not_match(self._term(STATE_KEY))
        with translate_errors(self.folder):
            for address in self._search(query, min(limit, max(1, self._searcher.num_docs))):
                yield self.documents.decode(self._stored(address))

    def _bucket_queries(self) -> Iterator[tantivy.Query]:
        """Yield queries that together return all rows."""
        if self._searcher.num_docs <= _ROWS_PER_QUERY:
            yield tantivy.Query.all_query().and_must_not_match(self._term(STATE_KEY))
            return
        for number in range(BUCKETS):
            yield tantivy.Query.term_query(self._index.schema, BUCKET, number)

    def _term(self, term: str) -> tantivy.Query:
        return tantivy.Query.term_query(self._index.schema, KEY, term, index_option="basic")

    def _search_all(self, query: tantivy.Query) -> list[tantivy.DocAddress]:
        """Return all matches. tantivy allocates memory for the whole limit, so start with a small limit and
        increase it.
        """
        limit = min(self._searcher.num_docs, _ROWS_PER_QUERY) + 1
        while len(addresses := self._search(query, limit)) == limit:
            limit *= 4
        return addresses

    def _search(self, query: tantivy.Query, limit: int) -> list[tantivy.DocAddress]:
        return [address for _, address in self._searcher.search(query, limit, count=False).hits]

    def _stored(self, address: tantivy.DocAddress) -> Any:
        return self._searcher.doc(address).get_first(ROW)


class SearchReader(CatalogReader):
    """Reads views of a folder.

    It reads the catalog, opens the index, and reads the catalog again. If the catalog has changed, it starts again. A
    writer removes a replaced folder immediately, but an index that is already open remains readable.
    """

    def _snapshot(self, view: str, part: Part) -> Snapshot | None:
        catalog = CatalogFolder(self.path / view / CATALOG, view)
        for _ in range(_ATTEMPTS_MAX):
            current: Catalog = catalog.read()
            folder = current.folder(part)
            if not folder:
                return None
            try:
                snapshot = Snapshot(self.path / view / folder)
            except StoreReplaced:
                if catalog.read().folder(part) == folder:
                    return None
                continue
            if catalog.read().folder(part) == folder:
                return snapshot
        raise StoreUnusable(f"{self.path / view} changes faster than it can be read", hint="try again")

    def _serving(self, view: str) -> Snapshot:
        snapshot = self._snapshot(view, Part.SERVING)
        if snapshot is None:
            raise self.not_serving(view)
        return snapshot

    def _view_names(self) -> Iterable[str]:
        return (view_dir.name for view_dir in self.path.iterdir() if (view_dir / CATALOG).is_dir())

    def _part_state(self, view: str, part: Part) -> ViewState | None:
        snapshot = self._snapshot(view, part)
        return None if snapshot is None else snapshot.state

    def count(self, view: str) -> int:
        return self._serving(view).count()

    # Rows

    def query(self, view: str, build: QueryBuilder, timeout_s: float) -> QueryResult | None:
        snapshot = self._snapshot(view, Part.SERVING)
        if snapshot is None:
            return None
        state = snapshot.state
        query = build(state.schema)
        if query.words:
            try:
                search = self._sorted_matches if query.order else self._best_matches
                return search(snapshot, query, timeout_s)
            except ValueError as error:
                raise invalid_query_error(error, snapshot.documents.names) from error
        if query.key is not None:
            row = snapshot.row(query.key)
            return QueryResult(state, query, [] if row is None else [row], False)
        count = snapshot.count()
        if count > _SCAN_ROWS_MAX:
            raise QueryRefused(
                f"view {view!r} has {count} rows in a full-text index, which finds rows only by words or key; other"
                f" queries scan at most {_SCAN_ROWS_MAX} rows",
                hint="query by words or by key, or add a second view of the topic in SQLite or PostgreSQL",
            )
        rows = with_deadline(snapshot.rows(), self._clock, timeout_s)
        return QueryResult(state, query, *select_rows(state.schema, rows, query))

    def _best_matches(self, snapshot: Snapshot, query: Query, timeout_s: float) -> QueryResult:
        state = snapshot.state
        if query.skip + query.limit >= _MATCHES_MAX:
            raise QueryRefused(
                f"a search returns at most the {_MATCHES_MAX} best matches",
                hint="add words to the search, so that fewer rows match",
            )
        matches = with_deadline(snapshot.matching(query.words, _MATCHES_MAX), self._clock, timeout_s)
        selected = filter(predicate_for(state.schema, query.where), matches)
        rows = [*itertools.islice(selected, query.skip, query.skip + query.limit + 1)]
        return QueryResult(state, query, rows[: query.limit], len(rows) > query.limit)

    def _sorted_matches(self, snapshot: Snapshot, query: Query, timeout_s: float) -> QueryResult:
        """Read all matches and sort them, because the index sorts only by relevance."""
        state = snapshot.state
        rows = with_deadline(snapshot.matching(query.words, _SCAN_ROWS_MAX + 1), self._clock, timeout_s)
        return QueryResult(state, query, *select_rows(state.schema, _limited(rows), query))

    @contextlib.contextmanager
    def scan(
        self, view: str, timeout_s: float, words: str | None = None
    ) -> Iterator[tuple[list[str], Iterator[Row]]]:
        snapshot = self._serving(view)
        rows = snapshot.rows() if words is None else snapshot.matching(words, _SCAN_ROWS_MAX)
        try:
            yield list(snapshot.state.schema.names), with_deadline(rows, self._clock, timeout_s)
        except ValueError as error:
            query_error = invalid_query_error(error, snapshot.documents.names)
            raise QueryFailed(query_error.message, hint=query_error.hint) from error


def _limited(rows: Iterator[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if number == _SCAN_ROWS_MAX:
            raise QueryRefused(
                f"more than {_SCAN_ROWS_MAX} rows match, and a search cannot sort more",
                hint="add words to the search, or add a second view of the topic in SQLite or PostgreSQL",
            )
        yield row
