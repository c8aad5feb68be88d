from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.framing import FrameTooLarge, Framing


def feed(framing: Framing, stream: bytes, pieces: list[int]) -> list[bytes]:
    """Give the stream to the framing as a socket would, in pieces of at most the given sizes, in turn."""
    frames: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        room = framing.room()
        assert len(room) > 0, "a socket with no room to read into would spin"
        size = min(len(room), pieces[turn % len(pieces)], len(stream) - at)
        turn += 1
        room[:size] = stream[at : at + size]
        at += size
        frames += map(bytes, framing.received(size))
    return frames


def framed(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 40), st.integers(8000, 8400), st.integers(0, 60_000)), max_size=8
    ),
    pieces=st.lists(st.integers(1, 20_000), min_size=1, max_size=5),
)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    sizes: list[int], pieces: list[int]
) -> None:
    frames = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    assert feed(Framing(1 << 20), framed(frames), pieces) == frames


def test_a_frame_larger_than_its_first_buffer_grows_with_what_arrives() -> None:
    frame = bytes(5 << 20)
    assert feed(Framing(8 << 20), framed([frame, b"next"]), [1 << 16]) == [frame, b"next"]


@pytest.mark.parametrize("size", [-1, -(2**31), (1 << 20) + 1, 2**31 - 1])
def test_an_impossible_size_is_refused_before_any_memory_is_taken(size: int) -> None:
    framing = Framing(1 << 20)
    with pytest.raises(FrameTooLarge):
        feed(framing, size.to_bytes(4, "big", signed=True), [4])


def test_a_large_announcement_alone_costs_no_more_than_a_first_buffer() -> None:
    framing = Framing(100 << 20)
    feed(framing, (100 << 20).to_bytes(4, "big"), [4])
    assert len(framing.room()) <= 1 << 20
