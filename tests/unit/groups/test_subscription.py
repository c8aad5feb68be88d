"""Parsing the topics of a consumer's subscription."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.member import subscribed_topics
from headrace.wire import encode
from headrace.wire import messages as m

from .rig import subscription

TOPICS = st.lists(st.text(max_size=30), max_size=5)


@pytest.mark.parametrize("version", range(4))
@given(topics=TOPICS)
def test_the_topics_of_every_subscription_version_are_parsed(version: int, topics: list[str]) -> None:
    body = encode(m.ConsumerProtocolSubscription(topics=topics, user_data=b"mine"), version)
    assert subscribed_topics(struct.pack(">h", version) + bytes(body), 5) == topics


def test_the_known_fields_of_future_subscription_versions_are_parsed() -> None:
    assert subscribed_topics(subscription("orders", version=99) + b"news", 1) == ["orders"]


@given(st.binary(max_size=40))
def test_bytes_that_are_not_a_subscription_raise_no_error(data: bytes) -> None:
    topics = subscribed_topics(data, 100)
    assert topics is None or all(isinstance(topic, str) for topic in topics)


def test_an_impossible_count_is_refused_before_memory_is_allocated() -> None:
    assert subscribed_topics(struct.pack(">hi", 1, 2**31 - 1) + bytes(100), 2**31) is None


def test_a_subscription_with_too_many_topics_has_no_known_topics() -> None:
    assert subscribed_topics(subscription("a", "b"), 2) == ["a", "b"]
    assert subscribed_topics(subscription("a", "b"), 1) is None
