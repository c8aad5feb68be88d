"""Entries decode to what was encoded, and the broker does not start with an invalid entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.coordinator_state import CoordinatorState
from headrace.broker.groups.entries import (
    Entry,
    GroupDeleted,
    GroupEntry,
    MemberEntry,
    OffsetRow,
    OffsetsDeleted,
    OffsetsEntry,
    TopicDeleted,
    decode_entry,
    encode_entry,
)
from headrace.broker.limits import text_bytes
from headrace.errors import DamagedState

from .journal import MemoryJournal
from .rig import Rig

NAMES = st.sampled_from(["a", "b", "Ä\0"])
INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.builds(
    OffsetRow, NAMES, st.integers(0, 2), INT64, st.integers(-1, 9), st.text(max_size=5), INT64, INT64
)
MEMBERS = st.builds(
    MemberEntry,
    st.text(max_size=5),
    st.none() | st.text(max_size=5),
    st.text(max_size=5),
    st.just("/127.0.0.1"),
    st.integers(0, 10),
    st.integers(0, 10),
    st.tuples(st.tuples(st.text(max_size=5), st.binary(max_size=9))),
    st.binary(max_size=9),
)
ENTRIES = st.one_of(
    st.builds(
        GroupEntry,
        NAMES,
        st.integers(0, 2**31 - 1),
        st.none() | st.text(max_size=5),
        st.none() | st.text(max_size=5),
        st.none() | st.text(max_size=5),
        INT64,
        st.tuples(MEMBERS),
    ),
    st.builds(GroupDeleted, NAMES),
    st.builds(OffsetsEntry, NAMES, st.lists(ROWS, max_size=3)),
    st.builds(OffsetsDeleted, NAMES, st.lists(st.tuples(NAMES, st.integers(0, 2)), max_size=3)),
    st.builds(TopicDeleted, NAMES),
)


def fold(entries: list[Entry]) -> CoordinatorState:
    state = CoordinatorState()
    for entry in entries:
        state.apply(entry)
    return state


def contents(state: CoordinatorState) -> object:
    offsets = state.offsets
    rows = {
        (group, row.topic, row.partition): row for group in offsets.groups() for row in offsets.rows(group)
    }
    assert offsets.count == len(rows)
    assert offsets.metadata_bytes == sum(text_bytes(row.metadata) for row in rows.values())
    return state.groups, rows


@given(ENTRIES)
def test_an_entry_is_decoded_as_it_was_encoded(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(st.lists(ENTRIES, max_size=12))
def test_a_snapshot_restores_the_same_state(entries: list[Entry]) -> None:
    state = fold(entries)
    assert contents(fold(list(state.snapshot()))) == contents(state)


def test_a_snapshot_of_many_offsets_has_no_large_entry() -> None:
    state = fold([OffsetsEntry("g", [OffsetRow("t", index, 1, -1, "", 0, -1) for index in range(2_500)])])
    assert [len(entry.rows) for entry in state.snapshot() if isinstance(entry, OffsetsEntry)] == [
        1_000,
        1_000,
        500,
    ]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b'{"kind":"unheard of"}',
        b'{"kind":"group-gone"}',
        b'{"kind":"group-gone","group":3}',
        b'{"kind":"group-gone","group":"\xff"}',
        b'{"kind":"offsets","group":"g","rows":[["t",0,99999999999999999999999999,0,"",0,0]]}',
        b"[" * 100_000,
    ],
)
async def test_the_broker_does_not_start_with_an_invalid_entry(raw: bytes) -> None:
    with pytest.raises(DamagedState):
        Rig(journal=MemoryJournal([encode_entry(GroupDeleted("g")), raw]))


async def test_the_broker_does_not_start_if_the_leader_of_a_group_is_not_a_member() -> None:
    member = MemberEntry("m", None, "c", "/h", 1, 1, (("range", b""),), b"")
    entry = GroupEntry("g", 1, "consumer", "range", "somebody", 0, (member,))
    with pytest.raises(DamagedState):
        Rig(journal=MemoryJournal([encode_entry(entry)]))
