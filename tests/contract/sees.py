"""The stores that must pass the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.contract.see import See
from tests.contract.see_delta import SeeDelta
from tests.contract.see_postgres import SeePostgres
from tests.contract.see_redis import SeeRedis
from tests.contract.see_search import SeeSearch
from tests.contract.see_sqlite import SeeSqlite

__all__ = ["SEES"]

SEES: dict[str, Callable[[Path], See]] = {
    "sqlite": SeeSqlite,
    "postgres": SeePostgres,
    "redis": SeeRedis,
    "search": SeeSearch,
    "delta": SeeDelta,
}
