from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.net.request import FrameTooLarge, Framing


def feed(framing: Framing, stream: bytes, chunk_sizes: list[int]) -> list[bytes]:
    """Pass the stream to the framing as a socket would, in chunks of at most these sizes, in rotation."""
    frames: list[bytes] = []
    position = number = 0
    while position < len(stream):
        room = framing.room()
        assert len(room) > 0, "the buffer is full, so a socket could not read into it"
        size = min(len(room), chunk_sizes[number % len(chunk_sizes)], len(stream) - position)
        number += 1
        room[:size] = stream[position : position + size]
        position += size
        frames += map(bytes, framing.received(size))
    return frames


def with_sizes(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 40), st.integers(8000, 8400), st.integers(0, 60_000)), max_size=8
    ),
    chunk_sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=5),
)
def test_frames_are_reassembled_from_chunks_of_any_size(sizes: list[int], chunk_sizes: list[int]) -> None:
    frames = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    assert feed(Framing(1 << 20), with_sizes(frames), chunk_sizes) == frames


def test_the_buffer_of_a_large_frame_grows_with_the_received_bytes() -> None:
    frame = bytes(5 << 20)
    assert feed(Framing(8 << 20), with_sizes([frame, b"next"]), [1 << 16]) == [frame, b"next"]


@pytest.mark.parametrize("size", [-1, -(2**31), (1 << 20) + 1, 2**31 - 1])
def test_an_invalid_size_is_refused_before_any_allocation(size: int) -> None:
    framing = Framing(1 << 20)
    with pytest.raises(FrameTooLarge):
        feed(framing, size.to_bytes(4, "big", signed=True), [4])


def test_a_large_announced_size_allocates_only_a_first_buffer() -> None:
    framing = Framing(100 << 20)
    feed(framing, (100 << 20).to_bytes(4, "big"), [4])
    assert len(framing.room()) <= 1 << 20
