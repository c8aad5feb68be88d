from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker import names as broker
from headrace.model.names import name_fault, twin_key

ALLOWED = string.ascii_letters + string.digits + "._-"
ANY = st.one_of(
    st.text(ALLOWED, max_size=252),
    st.text(max_size=20),
    st.sampled_from(["", ".", "..", "a/b", "../x", "a\0", "a\n", "__consumer_offsets", "__cluster_metadata"]),
)


@given(ANY)
def test_a_name_is_allowed_here_just_where_a_client_may_make_such_a_topic(name: str) -> None:
    taken = broker.is_internal(name) or name == broker.RESERVED
    assert (name_fault(name) is None) is (broker.name_fault(name) is None and not taken)


@given(st.text("aAbB._-", max_size=4), st.text("aAbB._-", max_size=4))
def test_names_that_the_log_does_not_take_side_by_side_are_twins_and_so_are_cases(
    one: str, other: str
) -> None:
    collide = broker.collision_key(one.lower()) == broker.collision_key(other.lower())
    assert (twin_key(one) == twin_key(other)) is collide
