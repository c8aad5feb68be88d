"""Which rows have words: of rows that changed, one by one or together, as the view's index says of all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.model.kinds import Choice, Field, Plain
from headrace.views.changes import Changes
from headrace.views.errors import QuestionRefused
from headrace.views.position import Shape
from headrace.views.question import Question, by_key
from headrace.views.rows import Row
from headrace.views.search.asking import SearchAsker
from headrace.views.search.matching import WordMatcher
from headrace.views.search.store import SearchStore
from tests.contract.store_hand import Hand

_SHAPE = Shape(
    (
        Field("number", Plain("int"), False),
        Field("name", Plain("text"), True),
        Field("about-it", Plain("text"), True),
        Field("kind", Choice(("old", "new")), True),
        Field("raw", Plain("bytes"), True),
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


def _changes(rows: list[Row], *gone: int) -> Changes:
    made = Changes(_SHAPE)
    made.put_all(rows)
    for number in gone:
        made.remove((number,))
    return made


class _Index:
    def __init__(self, path: Path) -> None:
        store = SearchStore(path, "sales")
        hand = Hand(store)
        hand.serve(_SHAPE)
        # Rows that were others, and others that are gone, in several commits.
        rows = _rows(1)
        hand.apply(_changes([(number, "pear fig", "old", None, None) for number in range(90)]))
        hand.apply(_changes(rows[:40], *range(80, 90)))
        hand.apply(_changes(rows[40:]))
        self.rows = rows
        store.close()
        self.asker = SearchAsker(path)

    def having(self, words: str) -> set[int] | None:
        """None if the index refuses them."""
        try:
            best = self.asker.ask("sales", lambda shape: Question(9_000, words=words), 30)
            sorted_ = self.asker.ask(
                "sales", lambda shape: Question(9_000, words=words, order=by_key(shape)), 30
            )
        except QuestionRefused:
            return None
        assert best is not None
        assert sorted_ is not None
        assert sorted_.rows == sorted(best.rows, key=lambda row: row[:1])
        return {int(str(row[0])) for row in best.rows}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Index]:
    made = _Index(tmp_path_factory.mktemp("words"))
    yield made
    made.asker.close()


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
def test_what_has_the_words_among_changes_is_what_has_them_in_the_index(index: _Index, words: str) -> None:
    wanted = index.having(words)
    searched = ("name", "about-it", "kind")
    if wanted is None:
        with pytest.raises(QuestionRefused):
            WordMatcher(_SHAPE, searched, words)
        return
    matcher = WordMatcher(_SHAPE, searched, words)
    assert matcher.matching(index.rows) == wanted
    for number in (0, 41):
        assert matcher.matching(index.rows[number : number + 1]) == ({0} if number in wanted else set())


def test_a_phrase_whose_last_word_may_go_on_is_refused(index: _Index) -> None:
    """The index looks for the first fifty words of its own that it may be."""
    assert index.having('"pear fi"*')
    with pytest.raises(QuestionRefused, match="what other rows have"):
        WordMatcher(_SHAPE, ("name",), '"pear fi"*')


def test_an_index_without_columns_of_texts_is_asked_by_keys() -> None:
    matcher = WordMatcher(_SHAPE, (), '"=[7]"')
    assert matcher.matching(_rows(1)) == {7}
    assert matcher.matching([]) == set()
