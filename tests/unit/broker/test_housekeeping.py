"""What a broker does by itself goes on after a failure, and says what failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import broker as broking
from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings
from headrace.errors import PartitionFenced
from headrace.testing.faulty_clock import DrivenClock


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_the_time_is_noted_again_after_it_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broking, "_TIME_KEPT_S", 0.001)
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
    note = broker._data_dir.note_time
    failures = 2
    noted = 0

    def fails_at_first(trusted_ms: int) -> None:
        nonlocal failures, noted
        if failures:
            failures -= 1
            raise OSError(28, "No space left on device")
        noted += 1
        note(trusted_ms)

    monkeypatch.setattr(broker._data_dir, "note_time", fails_at_first)
    await broker.start()
    async with asyncio.timeout(120):
        while not noted:
            await asyncio.sleep(0.001)
    await broker.stop()
    assert all("No space left on device" in said for said in errors_in(caplog))
    assert len(errors_in(caplog)) == 2


async def test_a_jump_of_the_clock_that_was_taken_back_is_told_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broking, "_TIME_KEPT_S", 0.001)
    clock = DrivenClock()
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0), clock=clock)
    await broker.start()
    await asyncio.sleep(0)  # It looks at the clock from now on.
    clock.jump_wall(3_600_000)
    broker.trusted_time.now_ms()
    clock.jump_wall(-3_600_000)
    async with asyncio.timeout(120):
        while not caplog.records:
            await asyncio.sleep(0.001)
    await broker.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock jumped by +3600 s and was set right again; nothing was deleted by it"
    ]


async def test_offsets_that_cannot_be_expired_do_not_end_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
    await broker.start()

    async def fails(*_: Any) -> None:
        raise PartitionFenced("the journal of groups takes no writes")

    monkeypatch.setattr(broker.groups, "expire", fails)
    await broker.trim()
    await broker.stop()
    assert any("the journal of groups takes no writes" in said for said in errors_in(caplog))
