"""Every store that must pass the contract, and a follower that a test controls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.stores.port import StoreFixture
from faults.stores.registry import KINDS, store_fixture
from tests.contract.store_driver import StoreDriver


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreFixture]:
    with contextlib.closing(store_fixture(request.param)(tmp_path)) as created:
        yield created


@pytest.fixture
def driver(backend: StoreFixture) -> Iterator[StoreDriver]:
    with contextlib.closing(backend.open()) as store:
        yield StoreDriver(store)
