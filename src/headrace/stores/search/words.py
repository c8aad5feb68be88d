"""Parses full-text queries, and matches single rows without the view's index.

``WordMatcher`` decides which rows match a query, with the same result as the view's index. It builds an index of only
the rows that it receives, in memory, with the view's columns, analyzer and query parser. Whether a row matches depends
only on the row and the query. The exception is a phrase with a prefix at its end (``"fresh pe"*``): it expands to the
first matching words of the whole index, so ``WordMatcher`` does not support it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tantivy

from headrace.stores.errors import QueryRefused
from headrace.stores.position import ViewSchema
from headrace.stores.rows import Row
from headrace.stores.search.layout import KEY, ROW, TOKENIZER, Documents, analyzer

__all__ = ["WORDS_CHARS_MAX", "WordMatcher", "invalid_query_error", "parse_words"]

WORDS_CHARS_MAX = 2_000
_HEAP_BYTES = 15_000_000
_PHRASE_PREFIX = "PhrasePrefixQuery"
_EXISTS = "ExistsQuery"


def parse_words(index: tantivy.Index, words: str, names: Sequence[str]) -> tantivy.Query:
    """Parse a query. Raise ValueError if ``words`` is not a valid query."""
    if len(words) > WORDS_CHARS_MAX:
        # A deeply nested query would overflow the stack and end the process.
        raise ValueError(f"the query has {len(words)} characters (limit {WORDS_CHARS_MAX})")
    query = index.parse_query(words, [*names] or [KEY])
    if _EXISTS in repr(query):
        # Otherwise the index would reject the query at execution, with the same error as for a damaged index.
        raise ValueError(
            "column:* is not supported; to find rows that have a value, use a filter such as name != null"
        )
    return query


def invalid_query_error(error: ValueError, names: Sequence[str]) -> QueryRefused:
    return QueryRefused(
        f"the full-text index cannot parse the query: {error}",
        hint=f'use words, "a phrase", +required, -excluded or column:word; the columns are {", ".join(names)}',
    )


class WordMatcher:
    """Thread-safe. Raises ``QueryRefused`` if the query is invalid or cannot be matched row by row."""

    def __init__(self, schema: ViewSchema, searched: Sequence[str], words: str) -> None:
        self._documents = Documents(schema, searched)
        self._words = words
        try:
            query = parse_words(self._create_index(), words, self._documents.names)
        except ValueError as error:
            raise invalid_query_error(error, self._documents.names) from error
        if _PHRASE_PREFIX in repr(query):
            raise QueryRefused(
                "a subscription does not support a phrase with a prefix at its end, because its matches depend on other"
                " rows",
                hint='remove the * after the quotes, or remove the quotes: "fresh pear" or +fresh +pear',
            )

    def matching(self, rows: Sequence[Row]) -> set[int]:
        """Return the indexes of the rows that match."""
        if not rows:
            return set()
        index = self._create_index()
        writer = index.writer(_HEAP_BYTES, 1)
        for number, row in enumerate(rows):
            _, document = self._documents.document(row, stored=number.to_bytes(4))
            writer.add_document(document)
        writer.commit()
        index.reload()
        searcher = index.searcher()
        query = parse_words(index, self._words, self._documents.names)
        hits = searcher.search(query, len(rows), count=False).hits
        matches = {int.from_bytes(searcher.doc(address)[ROW][0]) for _, address in hits}
        writer.wait_merging_threads()
        return matches

    def _create_index(self) -> tantivy.Index:
        index = tantivy.Index(self._documents.index_schema())
        index.register_tokenizer(TOKENIZER, analyzer())
        index.config_reader("manual")
        return index
