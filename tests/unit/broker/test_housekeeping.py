"""The background work of a broker continues after a failure, and logs it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import broker as broker_module
from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings
from headrace.errors import PartitionFenced
from headrace.testing.clock import DrivenClock


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_saving_the_trusted_time_is_retried_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_module, "_SAVE_TIME_S", 0.001)
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
    save_time = broker._data_dir.save_time
    failures = 2
    saves = 0

    def fails_at_first(trusted_ms: int) -> None:
        nonlocal failures, saves
        if failures:
            failures -= 1
            raise OSError(28, "No space left on device")
        saves += 1
        save_time(trusted_ms)

    monkeypatch.setattr(broker._data_dir, "save_time", fails_at_first)
    await broker.start()
    async with asyncio.timeout(120):
        while not saves:
            await asyncio.sleep(0.001)
    await broker.stop()
    assert all("No space left on device" in message for message in errors_in(caplog))
    assert len(errors_in(caplog)) == 2


async def test_a_reverted_jump_of_the_clock_is_logged_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_module, "_SAVE_TIME_S", 0.001)
    clock = DrivenClock()
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0), clock=clock)
    await broker.start()
    await asyncio.sleep(0)  # The task reads the clock from now on.
    clock.jump_wall(3_600_000)
    broker.trusted_time.now_ms()
    clock.jump_wall(-3_600_000)
    async with asyncio.timeout(120):
        while not caplog.records:
            await asyncio.sleep(0.001)
    await broker.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock jumped by +3600 s and back; retention ignored the jump"
    ]


async def test_retention_continues_if_offsets_cannot_be_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
    await broker.start()

    async def fail(*_: Any) -> None:
        raise PartitionFenced("the journal of groups takes no writes")

    monkeypatch.setattr(broker.groups, "expire", fail)
    await broker.trim()
    await broker.stop()
    assert any("the journal of groups takes no writes" in message for message in errors_in(caplog))
