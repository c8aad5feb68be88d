"""Patterns of transactional ids, held against Python's own engine, which they must agree with."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.transactions import Pattern, PatternRefused

ATOMS = ["a", "b", "-", ".", "\\.", "[ab]", "[^a]", "[a-c]", "\\d", "\\w", "(?:ab)", "(a|b-)", "1"]
REPEATS = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)), max_size=6),
    st.lists(st.text("ab-.1c", max_size=8), min_size=1, max_size=5),
)
def test_a_pattern_matches_what_python_s_engine_matches(
    parts: list[tuple[str, str]], texts: list[str]
) -> None:
    text = "".join(atom + repeat for atom, repeat in parts)
    pattern = Pattern(text)
    for candidate in texts:
        assert pattern.matches(candidate) == (re.fullmatch(text, candidate) is not None), (text, candidate)


@pytest.mark.parametrize(
    "text", ["(", "a)", "[a", "*", "a**", "a{2", "\\", "(?=a)", "\\p{L}", "a{3,1}", "[b-a]", "a{999999999}"]
)
def test_what_is_no_pattern_or_not_known_is_refused(text: str) -> None:
    with pytest.raises(PatternRefused):
        Pattern(text)


@pytest.mark.parametrize("text", ["a{2000}{2000}", "(" * 100 + "a" + ")" * 100, "a" * 2000, "(a{100}){100}"])
def test_a_pattern_that_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(PatternRefused):
        Pattern(text)


def test_the_two_ends_may_be_named() -> None:
    assert Pattern("^app-.*$").matches("app-1")
    assert not Pattern("^app-.*$").matches("my-app-1")


def test_a_pattern_made_to_search_for_ever_does_not() -> None:
    pattern = Pattern("(a|a|aa)+b")
    began = time.process_time()
    assert not pattern.matches("a" * 1_000)
    assert time.process_time() - began < 5
