"""Tokens joined by commas cover all their writes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.remote.results import RecordId, Written
from headrace.remote.session import OwnWrites
from headrace.serve.errors import InvalidPositionToken, PositionTokenOutdated
from headrace.serve.query.position_token import PositionToken, TopicPosition

writes = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1)
    ),
    min_size=1,
    max_size=12,
)


@given(writes)
@settings(max_examples=100)
def test_the_combined_token_covers_the_last_write_to_every_partition(
    writes: list[tuple[str, list[tuple[int, int]]]],
) -> None:
    own_writes = OwnWrites()
    last: dict[str, dict[int, int]] = {}
    at = 0
    for topic, offsets in writes:
        # Offsets of a partition only grow.
        last_offsets = {number: (at := at + offset + 1) for number, offset in offsets}
        ends = {number: end + 1 for number, end in last_offsets.items()}
        token = PositionToken.of({topic: TopicPosition(f"id of {topic}", ends)})
        own_writes.add(
            Written(topic, [RecordId(number, end) for number, end in last_offsets.items()], token.encode())
        )
        last.setdefault(topic, {}).update(ends)
    assert {
        name: topic.ends for name, topic in PositionToken.parse(own_writes.after("view")).topics.items()
    } == last


def test_tokens_of_a_recreated_topic_are_not_combined() -> None:
    first, second = (
        PositionToken.of({"t": TopicPosition(topic_id, {0: 1})}).encode() for topic_id in ("old", "new")
    )
    with pytest.raises(PositionTokenOutdated):
        PositionToken.parse(f"{first},{second}")
    for invalid in ("", ",", f"{first},", f"{first},x", ",".join([first] * 2_000)):
        with pytest.raises(InvalidPositionToken):
            PositionToken.parse(invalid)
