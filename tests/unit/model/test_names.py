from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.topics import topic as broker
from headrace.model.names import name_fault, twin_key

ALLOWED = string.ascii_letters + string.digits + "._-"
ANY = st.one_of(
    st.text(ALLOWED, max_size=252),
    st.text(max_size=20),
    st.sampled_from(["", ".", "..", "a/b", "../x", "a\0", "a\n", "__consumer_offsets", "__cluster_metadata"]),
)


@given(ANY)
def test_a_name_is_allowed_exactly_if_kafka_allows_such_a_topic(name: str) -> None:
    reserved = broker.is_internal(name) or name == broker.RESERVED
    assert (name_fault(name) is None) is (broker.name_fault(name) is None and not reserved)


@given(st.text("aAbB._-", max_size=4), st.text("aAbB._-", max_size=4))
def test_names_that_collide_in_the_log_or_differ_only_by_case_are_twins(name: str, other: str) -> None:
    collide = broker.collision_key(name.lower()) == broker.collision_key(other.lower())
    assert (twin_key(name) == twin_key(other)) is collide
