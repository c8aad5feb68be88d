"""How much is walked on the event loop: little where the walk is in Python."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from headrace.broker import walks
from headrace.records import RecordLimits, build_batch

LIMITS = RecordLimits()


def go_to_a_thread(batches: list[bytearray]) -> bool:
    wanted = walks._long_walks([(batch, "producer") for batch in batches], LIMITS)
    walks.forget(batches)
    return wanted is not None


@pytest.mark.parametrize(("at_once", "records"), [(walks._IN_C, 20_000), (walks._IN_PYTHON, 2_000)])
def test_many_records_are_walked_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, at_once: walks._AtOnce, records: int
) -> None:
    monkeypatch.setattr(walks, "_AT_ONCE", at_once)
    half = build_batch([(None, None, ())] * (records // 2), timestamp_ms=0)
    assert not go_to_a_thread([half, half])
    assert go_to_a_thread([half, half, build_batch([(None, None, ())], timestamp_ms=0)])


@pytest.mark.parametrize(("at_once", "size"), [(walks._IN_C, 8 << 20), (walks._IN_PYTHON, 64 << 10)])
def test_what_unpacks_to_much_is_walked_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, at_once: walks._AtOnce, size: int
) -> None:
    monkeypatch.setattr(walks, "_AT_ONCE", at_once)
    assert not go_to_a_thread([build_batch([(None, bytes(size - 100), ())], timestamp_ms=0, codec=4)])
    assert go_to_a_thread([build_batch([(None, bytes(size), ())], timestamp_ms=0, codec=4)])


@pytest.mark.parametrize(("at_once", "size"), [(walks._IN_C, 1100 << 10), (walks._IN_PYTHON, 64 << 10)])
def test_many_bytes_are_walked_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, at_once: walks._AtOnce, size: int
) -> None:
    monkeypatch.setattr(walks, "_AT_ONCE", at_once)
    assert not go_to_a_thread([build_batch([(None, bytes(size - 100), ())], timestamp_ms=0)])
    assert go_to_a_thread([build_batch([(None, bytes(size), ())], timestamp_ms=0)])


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_what_a_refused_batch_unpacked_to_is_freed_without_the_garbage_collector(codec: int) -> None:
    limits = RecordLimits(unpacked_bytes_max=48 << 20)
    bomb = build_batch([(None, bytes(50 << 20), ())], timestamp_ms=0, codec=codec)
    before = _resident_bytes()
    gc.disable()
    try:
        for _ in range(4):
            walks.walk_all([walks.Walk(bomb, None)], limits)
            with pytest.raises(walks.RecordsTooLarge):
                walks.checked_batch(bomb, limits)
            walks.forget([bomb])
        assert _resident_bytes() - before < 80 << 20
    finally:
        gc.enable()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096
