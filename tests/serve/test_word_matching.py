"""Word matches among changed rows, alone or together, compared with the index of the view."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.model.kinds import Enum, Field, Scalar
from headrace.stores.errors import QueryRefused
from headrace.stores.position import ViewSchema
from headrace.stores.query import Query, order_by_key
from headrace.stores.rows import Row
from headrace.stores.search.reader import SearchReader
from headrace.stores.search.words import WordMatcher
from headrace.stores.search.writer import SearchWriter
from headrace.stores.writer import Changes
from tests.contract.store_driver import StoreDriver

_SCHEMA = ViewSchema(
    (
        Field("number", Scalar("int"), False),
        Field("name", Scalar("text"), True),
        Field("about-it", Scalar("text"), True),
        Field("kind", Enum(("old", "new")), True),
        Field("raw", Scalar("bytes"), True),
    ),
    ("number",),
)
_WORDS = (
    *(
        "pear",
        "Pear",
        "PÉAR",
        "fig",
        "figs",
        "straße",
        "日本語",
        "naïve",
        "x" * 300,
        "a-b",
        "it's",
        "42",
        "3.14",
    ),
    *("AND", "or", "NOT", "🎈", "e\u0301", "\u0130", "old", "_headrace_key"),
)
_text = st.lists(st.sampled_from(_WORDS), max_size=6).map(" ".join)


def _rows(seed: int) -> list[Row]:
    rng = random.Random(seed)

    def text() -> str | None:
        return None if rng.random() < 0.1 else " ".join(rng.choices(_WORDS, k=rng.randrange(6)))

    return [
        (number, text(), text(), rng.choice(("old", "new", None)), rng.randbytes(2)) for number in range(80)
    ]


def _changes(rows: list[Row], *deleted: int) -> Changes:
    changes = Changes(_SCHEMA)
    changes.put_all(rows)
    for number in deleted:
        changes.remove((number,))
    return changes


class _Index:
    def __init__(self, path: Path) -> None:
        store = SearchWriter(path, "sales")
        driver = StoreDriver(store)
        driver.serve(_SCHEMA)
        # Updated and deleted rows, in several commits.
        rows = _rows(1)
        driver.apply(_changes([(number, "pear fig", "old", None, None) for number in range(90)]))
        driver.apply(_changes(rows[:40], *range(80, 90)))
        driver.apply(_changes(rows[40:]))
        self.rows = rows
        store.close()
        self.reader = SearchReader(path)

    def keys_matching(self, words: str) -> set[int] | None:
        """Return the keys of the rows that match the words, or None if the index refuses the words."""
        try:
            best = self.reader.query("sales", lambda shape: Query(9_000, words=words), 30)
            sorted_ = self.reader.query(
                "sales", lambda shape: Query(9_000, words=words, order=order_by_key(shape)), 30
            )
        except QueryRefused:
            return None
        assert best is not None
        assert sorted_ is not None
        assert sorted_.rows == sorted(best.rows, key=lambda row: row[:1])
        return {int(str(row[0])) for row in best.rows}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Index]:
    built = _Index(tmp_path_factory.mktemp("words"))
    yield built
    built.reader.close()


_column = st.sampled_from(
    ["name", "about\\-it", "about-it", "_about-it", "kind", "raw", "_headrace_bucket", "nothing"]
)
_word = st.sampled_from(_WORDS) | st.text(max_size=4)
_leaf = st.one_of(
    _word,
    _text.map('"{}"'.format),
    st.builds('"{}"~{}'.format, _text, st.integers(0, 3)),
    st.builds("{}:{}".format, _column, _word),
    st.builds("{}:[{} TO {}]".format, _column, _word, _word),
    st.builds("{}: IN [{} {}]".format, _column, _word, _word),
    st.builds("{}^2".format, _word),
    st.sampled_from(
        ["*", "", "-pear", "name:*", "name:/pe.*/", "_headrace_key:=[7]", '_headrace_key:"=[7]"']
    ),
)
_query = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("+{} -{}".format, inner, inner),
        st.builds("{} {}".format, inner, inner),
    ),
    max_leaves=4,
).filter(str.strip)


@settings(max_examples=80, deadline=None)
@given(_query)
@example("péar -straße")
@example("_headrace_bucket:[0 TO 500]")
@example("x" * 2_001)
@example("name:*")
def test_changed_rows_match_words_as_the_index_does(index: _Index, words: str) -> None:
    query = index.keys_matching(words)
    searched = ("name", "about-it", "kind")
    if query is None:
        with pytest.raises(QueryRefused):
            WordMatcher(_SCHEMA, searched, words)
        return
    matcher = WordMatcher(_SCHEMA, searched, words)
    assert matcher.matching(index.rows) == query
    for number in (0, 41):
        assert matcher.matching(index.rows[number : number + 1]) == ({0} if number in query else set())


def test_a_phrase_with_a_prefix_as_its_last_word_is_refused(index: _Index) -> None:
    """The index expands a prefix to its first fifty words."""
    assert index.keys_matching('"pear fi"*')
    with pytest.raises(QueryRefused, match="depend on other rows"):
        WordMatcher(_SCHEMA, ("name",), '"pear fi"*')


def test_an_index_without_text_columns_is_queried_by_keys() -> None:
    matcher = WordMatcher(_SCHEMA, (), '"=[7]"')
    assert matcher.matching(_rows(1)) == {7}
    assert matcher.matching([]) == set()
