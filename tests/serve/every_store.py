"""An app with one topic and a view of it in every store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

from faults.servers import redis
from faults.servers.postgres import shared_server
from headrace import App
from headrace.stores import Delta, Postgres, Redis, Search, SQLite

__all__ = ["STORES", "Thing", "app_with_every_store", "sample_rows"]

STORES = ("lite", "postgres", "delta", "redis", "search")


@dataclass(frozen=True)
class Thing:
    thing_id: str
    number: int
    name: str | None
    price: Decimal | None
    weight: float | None
    good: bool | None
    at: datetime | None
    day: date | None
    raw: bytes | None
    tags: list[str] | None


def app_with_every_store(name: str, home: Path) -> App:
    app = App("shop")
    topic = app.table(f"{name}-things", Thing, key="thing_id")
    server, prefix = redis.shared(), f"{name}:"
    stores = {
        "lite": SQLite(),
        "postgres": Postgres(shared_server().url("postgres"), name.replace("-", "_")),
        "delta": Delta(),
        "redis": Redis(f"{server.url}?db={redis.fresh_database()}", prefix),
        "search": Search(),
    }
    for kind in STORES:
        app.view(f"{kind}_things", topic, store=stores[kind])
    return app


def sample_rows(count: int) -> list[dict[str, object]]:
    odd_names = ['it\'s "quoted", with\nlines', "", "ünï→🎈", "n,1", "NULL", "\\N", " padded "]
    return [
        {
            "thing_id": f"t{number:04}",
            "number": (number - 3) * 2**58 if number < 7 else number,
            "name": None if number % 11 == 5 else odd_names[number % 7],
            "price": None if number % 13 == 7 else number * 3 / 4,
            "weight": None if number % 5 == 1 else "NaN" if number % 5 == 2 else number / 7,
            "good": (None, True, False)[number % 3],
            "at": None if number % 4 == 3 else f"2026-01-31T12:00:{number % 60:02}.{number % 1000:06}Z",
            "day": None if number % 6 == 3 else f"2026-02-{number % 28 + 1:02}",
            "raw": None if number % 3 == 1 else "AP8nXHg=",
            "tags": None if number % 4 == 1 else ["a", "b\"'"][: number % 3],
        }
        for number in range(count)
    ]
