"""Which of some rows have words, as the view's own index would say: by an index of these rows alone, in memory.

It has the columns, the analyser and the reader of queries that the view's index has, so the two agree whatever the
words are. What a row matches follows from the row and the words, with one exception: a phrase whose last word may go on
(``"fresh pe"*``) is looked for by the first few words of the whole index that it may be, and is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence

import tantivy

from headrace.views.errors import QuestionRefused
from headrace.views.position import Shape
from headrace.views.rows import Row
from headrace.views.search.fields import KEY, ROW, TOKENIZER, Documents, analyzer

__all__ = ["WORDS_CHARS_MAX", "WordMatcher", "misunderstood", "parsed"]

WORDS_CHARS_MAX = 2_000
_HEAP_BYTES = 15_000_000
_BY_OTHERS = "PhrasePrefixQuery"
_HAS_VALUE = "ExistsQuery"


def parsed(index: tantivy.Index, words: str, names: Sequence[str]) -> tantivy.Query:
    """Raises ValueError for words that are no query."""
    if len(words) > WORDS_CHARS_MAX:
        # What is nested deeper than the stack ends the process.
        raise ValueError(f"{len(words)} characters, and {WORDS_CHARS_MAX} is the most")
    query = index.parse_query(words, [*names] or [KEY])
    if _HAS_VALUE in repr(query):
        # The index would say so only when it is asked, as if it were damaged.
        raise ValueError("a column that has any value is asked for by a filter, as in name != null")
    return query


def misunderstood(error: ValueError, names: Sequence[str]) -> QuestionRefused:
    return QuestionRefused(
        f"the index does not understand that: {error}",
        hint=f'words, "words in a row", +must, -must not, column:word; the columns are {", ".join(names)}',
    )


class WordMatcher:
    """For any thread. Raises ``QuestionRefused`` for words that no index understands, or that cannot be followed."""

    def __init__(self, shape: Shape, searched: Sequence[str], words: str) -> None:
        self._documents = Documents(shape, searched)
        self._words = words
        try:
            query = parsed(self._index(), words, self._documents.names)
        except ValueError as error:
            raise misunderstood(error, self._documents.names) from error
        if _BY_OTHERS in repr(query):
            raise QuestionRefused(
                "a phrase whose last word may go on is found by what other rows have, and so cannot be followed",
                hint='leave out the * behind the quotes, or the quotes: "fresh pear" or +fresh +pear',
            )

    def matching(self, rows: Sequence[Row]) -> set[int]:
        """The places of those that have the words."""
        if not rows:
            return set()
        index = self._index()
        writer = index.writer(_HEAP_BYTES, 1)
        for at, row in enumerate(rows):
            _, document = self._documents.document(row, stored=at.to_bytes(4))
            writer.add_document(document)
        writer.commit()
        index.reload()
        searcher = index.searcher()
        query = parsed(index, self._words, self._documents.names)
        hits = searcher.search(query, len(rows), count=False).hits
        found = {int.from_bytes(searcher.doc(address)[ROW][0]) for _, address in hits}
        writer.wait_merging_threads()
        return found

    def _index(self) -> tantivy.Index:
        index = tantivy.Index(self._documents.schema())
        index.register_tokenizer(TOKENIZER, analyzer())
        index.config_reader("manual")
        return index
