from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings

from .broker_calls import BrokerCalls, CatalogHarness


@pytest.fixture
def harness() -> CatalogHarness:
    return CatalogHarness()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[BrokerCalls]]]:
    """Start a broker on the test's data directory; first stop the one that runs."""
    running: list[Broker] = []

    async def start(**settings: Any) -> BrokerCalls:
        while running:
            await running.pop().stop()
        broker = Broker(BrokerSettings(data_dir=tmp_path / "data", **settings))
        running.append(broker)
        await broker.start()
        return BrokerCalls(broker)

    yield start
    while running:
        await running.pop().stop()


@pytest.fixture
async def call(start: Callable[..., Awaitable[BrokerCalls]]) -> BrokerCalls:
    return await start()
