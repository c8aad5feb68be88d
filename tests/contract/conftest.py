"""Every store that must pass the contract, and a follower by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.see import See
from tests.contract.sees import SEES
from tests.contract.store_hand import Hand


@pytest.fixture(params=list(SEES))
def see(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[See]:
    with contextlib.closing(SEES[request.param](tmp_path)) as made:
        yield made


@pytest.fixture
def hand(see: See) -> Iterator[Hand]:
    with contextlib.closing(see.open()) as store:
        yield Hand(store)
