"""Large batches are validated in a thread. Validation in Python has lower limits than validation in C."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from headrace.broker.handlers import produce
from headrace.broker.handlers.produce import _C_LIMITS, _PYTHON_LIMITS, Prevalidation, _InlineLimits
from headrace.records import RecordLimits, RecordsTooLarge, build_batch

LIMITS = RecordLimits()


def needs_thread(batches: list[bytearray]) -> bool:
    validation = Prevalidation(len(batches), LIMITS)
    validation.begin([(batch, "producer") for batch in batches])
    return validation.needs_thread


@pytest.mark.parametrize(("inline", "records"), [(_C_LIMITS, 20_000), (_PYTHON_LIMITS, 2_000)])
def test_many_records_are_validated_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, inline: _InlineLimits, records: int
) -> None:
    monkeypatch.setattr(produce, "_INLINE", inline)
    half = build_batch([(None, None, ())] * (records // 2), timestamp_ms=0)
    assert not needs_thread([half, half])
    assert needs_thread([half, half, build_batch([(None, None, ())], timestamp_ms=0)])


@pytest.mark.parametrize(("inline", "size"), [(_C_LIMITS, 8 << 20), (_PYTHON_LIMITS, 64 << 10)])
def test_a_batch_with_a_large_decompressed_size_is_validated_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, inline: _InlineLimits, size: int
) -> None:
    monkeypatch.setattr(produce, "_INLINE", inline)
    assert not needs_thread([build_batch([(None, bytes(size - 100), ())], timestamp_ms=0, codec=4)])
    assert needs_thread([build_batch([(None, bytes(size), ())], timestamp_ms=0, codec=4)])


@pytest.mark.parametrize(("inline", "size"), [(_C_LIMITS, 1100 << 10), (_PYTHON_LIMITS, 64 << 10)])
def test_many_bytes_are_validated_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, inline: _InlineLimits, size: int
) -> None:
    monkeypatch.setattr(produce, "_INLINE", inline)
    assert not needs_thread([build_batch([(None, bytes(size - 100), ())], timestamp_ms=0)])
    assert needs_thread([build_batch([(None, bytes(size), ())], timestamp_ms=0)])


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_refused_batch_frees_its_decompressed_bytes_without_the_garbage_collector(codec: int) -> None:
    limits = RecordLimits(unpacked_bytes_max=48 << 20)
    bomb = build_batch([(None, bytes(50 << 20), ())], timestamp_ms=0, codec=codec)
    before = _resident_bytes()
    gc.disable()
    try:
        for _ in range(4):
            validation = Prevalidation(1, limits)
            validation.begin([(bomb, "producer")])
            assert validation.needs_thread
            validation.run()
            result = validation.results[0]
            assert result is not None
            assert isinstance(result.checked, RecordsTooLarge)
            with pytest.raises(RecordsTooLarge):
                raise result.checked
        assert _resident_bytes() - before < 80 << 20
    finally:
        gc.enable()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096
