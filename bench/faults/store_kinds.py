"""The stores that faults are played on. To add one, write its kind and its place, and name it here."""

from __future__ import annotations

from bench.faults.store_delta import DeltaKind
from bench.faults.store_place import Rows, Seen, StoreKind, StorePlace
from bench.faults.store_postgres import PostgresKind
from bench.faults.store_redis import RedisKind
from bench.faults.store_search import SearchKind
from bench.faults.store_sqlite import SqliteKind

__all__ = ["KINDS", "Rows", "Seen", "StoreKind", "StorePlace", "kind_of"]

KINDS: dict[str, StoreKind] = {
    "sqlite": SqliteKind(),
    "postgres": PostgresKind(),
    "redis": RedisKind(),
    "search": SearchKind(),
    "delta": DeltaKind(),
}


def kind_of(seed: int, share: int = 1) -> str:
    """Each kind in turn, ``share`` seeds at a time."""
    return list(KINDS)[seed // share % len(KINDS)]
