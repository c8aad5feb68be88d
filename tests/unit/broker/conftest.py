from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings

from .desk import Asking, CatalogDesk


@pytest.fixture
def desk() -> CatalogDesk:
    return CatalogDesk()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Asking]]]:
    """Start a broker on the test's data directory; one that runs is stopped first."""
    running: list[Broker] = []

    async def start(**settings: Any) -> Asking:
        while running:
            await running.pop().stop()
        broker = Broker(BrokerSettings(data_dir=tmp_path / "data", **settings))
        running.append(broker)
        await broker.start()
        return Asking(broker)

    yield start
    while running:
        await running.pop().stop()


@pytest.fixture
async def ask(start: Callable[..., Awaitable[Asking]]) -> Asking:
    return await start()
