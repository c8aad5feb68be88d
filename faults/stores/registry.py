"""The kinds of stores for contract tests and fault runs. A new kind needs a module with ``FIXTURE`` and ``FAULTS``.

Modules are imported when needed: each imports the libraries of its store, and a follower under attack needs only one.
"""

from __future__ import annotations

import importlib

from faults.stores.port import StoreFaults, StoreFixture

__all__ = ["KINDS", "kind_of", "store_faults", "store_fixture"]

KINDS = ("sqlite", "postgres", "redis", "search", "delta")


def store_faults(kind: str) -> StoreFaults:
    faults: StoreFaults = importlib.import_module(f"faults.stores.{kind}").FAULTS
    return faults


def store_fixture(kind: str) -> type[StoreFixture]:
    fixture: type[StoreFixture] = importlib.import_module(f"faults.stores.{kind}").FIXTURE
    return fixture


def kind_of(seed: int, share: int = 1) -> str:
    """Return each kind in turn, for ``share`` seeds each."""
    return KINDS[seed // share % len(KINDS)]
