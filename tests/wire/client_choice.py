"""Selects the clients that have the features of a test."""

from __future__ import annotations

import pytest

from tests.wire.conftest import CLIENTS

__all__ = ["clients_that_can"]


def clients_that_can(*abilities: str) -> pytest.MarkDecorator:
    names = [name for name, client in CLIENTS.items() if client.can.issuperset(abilities)]
    assert names
    return pytest.mark.parametrize("client", names, indirect=True)
