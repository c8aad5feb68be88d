"""One state of an index: rows and the position that belongs to them, whatever is written meanwhile.

The position is in a document of the same index, under the key ``standing``, as JSON. An index is committed by replacing
one file, so that document and the rows beside it are of one commit, for every reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import tantivy

from headrace.views.file_troubles import told_as
from headrace.views.position import Position, Shape, Standing
from headrace.views.rows import Row
from headrace.views.search.fields import BUCKET, BUCKETS, KEY, ROW, TOKENIZER, Documents, analyzer
from headrace.views.search.matching import parsed

__all__ = ["STANDING", "Snapshot", "Told", "opened"]

STANDING = "standing"
_AT_ONCE = 20_000


class Told(msgspec.Struct, frozen=True):
    """What the document says."""

    position: Position
    shape: str
    wish: int
    reason: str
    searched: list[str]
    """The columns whose words can be searched for."""

    @property
    def standing(self) -> Standing:
        shape = Shape.told(self.shape)
        return Standing(shape, self.position, self.wish, self.reason, searched=tuple(self.searched))


def opened(folder: Path) -> tantivy.Index:
    """Raises FileNotFoundError if there is none."""
    if not (folder / "meta.json").exists():
        raise FileNotFoundError(2, "there is no index", str(folder))
    index = tantivy.Index.open(str(folder))
    index.register_tokenizer(TOKENIZER, analyzer())
    return index


class Snapshot:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with told_as(folder):
            self._index = opened(folder)
            self._searcher = self._index.searcher()
            found = self._hits(self._term(STANDING), 1)
            if not found:
                raise ValueError("it has no position")
            self.told = msgspec.json.decode(self._stored(found[0]), type=Told)
        self.documents = Documents(self.told.standing.shape, self.told.searched)

    def count(self) -> int:
        return int(self._searcher.num_docs) - 1

    def rows(self) -> Iterator[Row]:
        """In no order."""
        with told_as(self.folder):
            for query in self._parts():
                for address in self._all_hits(query):
                    yield self.documents.row(self._stored(address))

    def row(self, key: Row) -> Row | None:
        with told_as(self.folder):
            found = self._hits(self._term(self.documents.term(key)), 1)
            return self.documents.row(self._stored(found[0])) if found else None

    def matching(self, words: str, limit: int) -> Iterator[Row]:
        """The best first. Raises ValueError for words that are no query."""
        query = parsed(self._index, words, self.documents.names)
        query = query.and_must_not_match(self._term(STANDING))
        with told_as(self.folder):
            for address in self._hits(query, min(limit, max(1, self._searcher.num_docs))):
                yield self.documents.row(self._stored(address))

    def _parts(self) -> Iterator[tantivy.Query]:
        """Queries that have all rows among them, each some."""
        if self._searcher.num_docs <= _AT_ONCE:
            yield tantivy.Query.all_query().and_must_not_match(self._term(STANDING))
            return
        for number in range(BUCKETS):
            yield tantivy.Query.term_query(self._index.schema, BUCKET, number)

    def _term(self, term: str) -> tantivy.Query:
        return tantivy.Query.term_query(self._index.schema, KEY, term, index_option="basic")

    def _all_hits(self, query: tantivy.Query) -> list[tantivy.DocAddress]:
        """Room is made for as many as are asked for, so that is no more than is likely to be there."""
        limit = min(self._searcher.num_docs, _AT_ONCE) + 1
        while len(found := self._hits(query, limit)) == limit:
            limit *= 4
        return found

    def _hits(self, query: tantivy.Query, limit: int) -> list[tantivy.DocAddress]:
        return [address for _, address in self._searcher.search(query, limit, count=False).hits]

    def _stored(self, address: tantivy.DocAddress) -> Any:
        return self._searcher.doc(address).get_first(ROW)
