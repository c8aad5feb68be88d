from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.topics.topic import collision_key, is_internal, name_fault

ALLOWED = string.ascii_letters + string.digits + "._-"


@given(st.text(ALLOWED, min_size=1, max_size=249).filter(lambda name: name not in (".", "..")))
def test_names_of_allowed_characters_are_accepted(name: str) -> None:
    assert name_fault(name) is None


@given(st.text(min_size=1, max_size=300).filter(lambda name: set(name) - set(ALLOWED)))
def test_names_with_any_other_character_are_refused(name: str) -> None:
    assert name_fault(name) is not None


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a/b", "../x", "a\0b", "a\n", "naïve", "٣"])
def test_dangerous_names_are_refused(name: str) -> None:
    assert name_fault(name) is not None


def test_the_longest_name_has_249_characters() -> None:
    assert name_fault("a" * 249) is None


def test_dots_and_underscores_collide_and_upper_and_lower_case_do_not() -> None:
    assert collision_key("a.b_c") == collision_key("a_b.c")
    assert collision_key("a.b") != collision_key("A.b")


def test_kafkas_own_topics_are_internal() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__mine")
