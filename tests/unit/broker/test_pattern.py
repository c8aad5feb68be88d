"""Regular expressions of clients: RE2's syntax, whole texts, bounded bytes, memory and steps."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.transactions.id_pattern import InvalidPattern, Pattern, search

ATOMS = ["a", "b", "-", ".", "\\.", "[ab]", "[^a]", "[a-c]", "\\d", "\\w", "(?:ab)", "(a|b-)", "1"]
REPEATS = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)), max_size=6),
    st.lists(st.text("ab-.1cé", max_size=8), min_size=1, max_size=5),
)
def test_a_pattern_matches_the_same_texts_as_in_python(
    parts: list[tuple[str, str]], texts: list[str]
) -> None:
    text = "".join(atom + repeat for atom, repeat in parts)
    pattern = Pattern(text)
    for candidate in texts:
        expected = re.fullmatch(text, candidate, re.ASCII) is not None
        assert pattern.matches(candidate) == expected, (text, candidate)


@pytest.mark.parametrize("text", ["(", "a)", "[a", "*", "a{3,1}", "\\", "(?=a)", "[b-a]", "(a)\\1"])
def test_an_invalid_pattern_is_refused_with_the_pattern_in_the_message(text: str) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(repr(text))):
        Pattern(text)


@pytest.mark.parametrize("text", ["a" * 513, "é" * 257, "(a{1000}){1000}", "\\pL" * 100, "(?:\\pL{0,99}){9}"])
def test_a_pattern_that_exceeds_its_limit_of_bytes_or_memory_is_refused(text: str) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(text)


def test_nested_empty_groups_match_nothing_but_the_empty_text() -> None:
    pattern = Pattern("(" * 40 + ")" * 40)
    assert pattern.matches("")
    assert not pattern.matches("a")


def test_a_pattern_may_have_anchors() -> None:
    assert Pattern("^app-.*$").matches("app-1")
    assert not Pattern("^app-.*$").matches("my-app-1")


async def test_a_long_search_yields_to_other_tasks_and_can_be_cancelled() -> None:
    pattern = Pattern("(?:a|b)*a(?:a|b){60}c")
    # The result is the same inline and in slices.
    texts = ["ab" * 500, "a" * 61 + "c", "c"] * 400
    with ThreadPoolExecutor(1) as executor:
        running = asyncio.ensure_future(search(pattern, texts, executor))
        iterations = 0
        while not running.done():
            iterations += 1
            await asyncio.sleep(0)
        assert iterations > 1
        assert running.result() == [False, True, False] * 400
        cancelled = asyncio.ensure_future(search(pattern, texts * 20, executor))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def test_a_search_with_too_many_steps_is_refused_before_it_begins() -> None:
    pattern = Pattern("(?:a|b)*a(?:a|b){400}c")
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(InvalidPattern, match=r"steps for 4000 transactional ids"),
    ):
        await search(pattern, ["ab" * 500] * 4000, executor)
