"""Several tokens with commas are one that tells of all of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.remote.own_writes import OwnWrites
from headrace.remote.written import Place, Written
from headrace.serve.errors import TokenOutdated, TokenUnfit
from headrace.serve.token import Reach, Token

writes = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1)
    ),
    min_size=1,
    max_size=12,
)


@given(writes)
@settings(max_examples=100)
def test_what_a_client_keeps_tells_of_the_last_write_to_every_partition(
    made: list[tuple[str, list[tuple[int, int]]]],
) -> None:
    own = OwnWrites()
    last: dict[str, dict[int, int]] = {}
    at = 0
    for topic, places in made:
        # Offsets of a partition only grow.
        found = {number: (at := at + offset + 1) for number, offset in places}
        token = Token.of({topic: Reach(f"id of {topic}", {number: end + 1 for number, end in found.items()})})
        own.note(Written(topic, [Place(number, end) for number, end in found.items()], token.tell()))
        last.setdefault(topic, {}).update({number: end + 1 for number, end in found.items()})
    assert {name: one.ends for name, one in Token.told(own.after("view")).topics.items()} == last


def test_tokens_of_a_topic_that_was_made_anew_do_not_go_together() -> None:
    first, second = (Token.of({"t": Reach(one, {0: 1})}).tell() for one in ("old", "new"))
    with pytest.raises(TokenOutdated):
        Token.told(f"{first},{second}")
    for wrong in ("", ",", f"{first},", f"{first},x", ",".join([first] * 2_000)):
        with pytest.raises(TokenUnfit):
            Token.told(wrong)
