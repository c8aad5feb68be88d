"""What is written is what is read back, and what does not read back refuses the start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.entries import (
    Entry,
    GroupEntry,
    GroupGone,
    MemberEntry,
    OffsetRow,
    OffsetsEntry,
    OffsetsGone,
    TopicGone,
    decode_entry,
    encode_entry,
)
from headrace.broker.groups.kept import Kept
from headrace.broker.sizes import text_bytes
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
    st.builds(GroupGone, NAMES),
    st.builds(OffsetsEntry, NAMES, st.lists(ROWS, max_size=3)),
    st.builds(OffsetsGone, NAMES, st.lists(st.tuples(NAMES, st.integers(0, 2)), max_size=3)),
    st.builds(TopicGone, NAMES),
)


def fold(entries: list[Entry]) -> Kept:
    kept = Kept()
    for entry in entries:
        kept.apply(entry)
    return kept


def contents(kept: Kept) -> object:
    offsets = kept.offsets
    rows = {
        (group, row.topic, row.partition): row for group in offsets.groups() for row in offsets.rows(group)
    }
    assert offsets.count == len(rows)
    assert offsets.metadata_bytes == sum(text_bytes(row.metadata) for row in rows.values())
    return kept.groups, rows


@given(ENTRIES)
def test_an_entry_reads_back_as_it_was(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@given(st.lists(ENTRIES, max_size=12))
def test_a_snapshot_folds_to_the_state_it_was_taken_of(entries: list[Entry]) -> None:
    kept = fold(entries)
    assert contents(fold(list(kept.snapshot()))) == contents(kept)


def test_a_snapshot_of_many_offsets_has_no_large_entry() -> None:
    kept = fold([OffsetsEntry("g", [OffsetRow("t", index, 1, -1, "", 0, -1) for index in range(2_500)])])
    assert [len(entry.rows) for entry in kept.snapshot() if isinstance(entry, OffsetsEntry)] == [
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
async def test_an_entry_that_does_not_read_as_one_refuses_the_start(raw: bytes) -> None:
    with pytest.raises(DamagedState):
        Rig(journal=MemoryJournal([encode_entry(GroupGone("g")), raw]))


async def test_a_group_whose_leader_is_no_member_refuses_the_start() -> None:
    member = MemberEntry("m", None, "c", "/h", 1, 1, (("range", b""),), b"")
    entry = GroupEntry("g", 1, "consumer", "range", "somebody", 0, (member,))
    with pytest.raises(DamagedState):
        Rig(journal=MemoryJournal([encode_entry(entry)]))
