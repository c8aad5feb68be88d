"""Subscriptions to views of every store: at every step the rows equal those derived from the log."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.subscriber_copy import Copy, Ended, Rows, events, socket
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.stores import OnRead
from tests.serve.every_store import STORES, app_with_every_store, sample_rows

Thing = dict[str, Any]
_FOLLOWED = (*STORES, "onread")
_QUERIES: list[tuple[dict[str, Any], Callable[[Thing], bool]]] = [
    ({}, lambda row: True),
    ({"filter": "number >= 20 and good = true"}, lambda row: row["number"] >= 20 and row["good"] is True),
    (
        {"prefix": "t000", "filter": "price >= 3"},
        lambda row: row["thing_id"] < "t001" and (row["price"] or 0) >= 3,
    ),
    ({"from_": "t0010", "to": "t0030"}, lambda row: "t0010" <= row["thing_id"] < "t0030"),
    ({"sort": "-number"}, lambda row: True),
    ({"sort": "-number", "limit": 4}, lambda row: True),
    ({"filter": "number >= 10", "limit": 9}, lambda row: row["number"] >= 10),
]
_WORD_QUERIES: list[tuple[dict[str, Any], Callable[[Thing], bool]]] = [
    ({"match": "QUOTED OR padded"}, lambda row: row["name"] in _NAMES),
    (
        {"match": "quoted padded", "filter": "number < 35", "sort": "-number", "limit": 3},
        lambda row: row["name"] in _NAMES and row["number"] < 35,
    ),
]
_NAMES = ('it\'s "quoted", with\nlines', " padded ")


class _Table:
    """The written records by partition and offset, from which the expected rows of any position follow."""

    def __init__(self, http: Http, topic: str) -> None:
        self._path = f"/v1/topics/{topic}/records"
        self._http = http
        self._written: dict[tuple[int, int], tuple[str, Thing | None]] = {}
        self._rng = random.Random(7)
        self.last: dict[int, int] = {}

    def write(self, changes: list[tuple[str, Thing | None]]) -> str:
        records = [
            {"value": value} if value is not None else {"key": {"thing_id": key}, "value": None}
            for key, value in changes
        ]
        document = self._http.post(self._path, {"records": records}).expect(200)
        for at, record in zip(document["records"], changes, strict=True):
            self._written[at["partition"], at["offset"]] = record
            self.last[at["partition"]] = max(at["offset"] + 1, self.last.get(at["partition"], 0))
        token: str = document["token"]
        return token

    def change(self) -> str:
        """Change some rows so that they enter or leave the result of a query, and delete some."""
        samples = sample_rows(40)
        changes: list[tuple[str, Thing | None]] = []
        for row_before in self._rng.sample(samples, 6):
            key = str(row_before["thing_id"])
            other = self._rng.choice(samples)
            row = {
                **row_before,
                "good": other["good"],
                "price": other["price"],
                "number": self._rng.randrange(40),
            }
            changes.append((key, None if self._rng.random() < 0.25 else row))
        return self.write(changes)

    def rows(
        self, offsets: dict[str, int], query: dict[str, Any], matches: Callable[[Thing], bool]
    ) -> dict[str, Thing] | None:
        """The expected rows at these offsets; None if the test has not recorded all writes up to there yet."""
        if any(at > self.last.get(int(number), 0) for number, at in offsets.items()):
            return None
        rows: dict[str, Thing] = {}
        for (partition, offset), (key, value) in sorted(self._written.items()):
            if offset < offsets[str(partition)]:
                rows.pop(key, None)
                if value is not None:
                    rows[key] = value
        matching = [entry for _, entry in sorted(rows.items()) if matches(entry)]
        if "sort" in query:
            matching.sort(key=lambda row: -row["number"])
        return {row["thing_id"]: row for row in matching[: query.get("limit")]}


@pytest.fixture(scope="module")
def served_stores(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[App, Http, _Table]]:
    home = tmp_path_factory.mktemp("followed")
    app = app_with_every_store("followed", home)
    app.view("onread_things", app.topics[0], store=OnRead())
    ensure_declared(cluster, app.topics[0], app.topics[0].name, 2)
    with contextlib.ExitStack() as stack:
        for view in app.views:
            stack.enter_context(following(cluster, view, [], home))
        http = stack.enter_context(served(app, cluster, home, frame_ms=5))
        table = _Table(http, app.topics[0].name)
        token = table.write([(str(thing_row["thing_id"]), thing_row) for thing_row in sample_rows(40)])
        for view in app.views:
            until(
                lambda view=view: (
                    http.get(f"/v1/views/{view.name}/rows", after=token, wait="20s").status == 200
                ),  # type: ignore[misc]
                f"view {view.name}",
            )
        yield app, http, table


def test_subscriptions_to_every_store_return_the_rows_of_every_kind_of_query(
    served_stores: tuple[App, Http, _Table],
) -> None:
    """All subscriptions run at once; each disconnects now and then."""
    _, http, table = served_stores
    rng = random.Random(1)

    async def follow(
        store: str,
        request: dict[str, Any],
        matches: Callable[[Thing], bool],
        has_reached: Callable[[Copy], bool],
    ) -> Copy:
        def check(position: dict[str, Any], rows: Rows) -> None:
            expected = table.rows(position["offsets"], request, matches)
            if expected is not None:
                result = {key[0]: _comparable(row) for key, row in rows.items()}
                assert result == {key: _comparable(row) for key, row in expected.items()}, (store, request)

        copy = Copy(check)
        while not has_reached(copy):
            transport: Any = rng.choice([socket, events])
            copy.connected()
            messages_left = rng.randrange(2, 12)
            with contextlib.suppress(Ended):
                async with transport(http.port, f"{store}_things", copy.cursor, **request) as (_, messages):
                    async for result in messages:
                        copy.take(result)
                        messages_left -= 1
                        if has_reached(copy) or messages_left < 0:
                            break
        assert "reset" not in [kind for kind, _ in copy.seen], store
        return copy

    async def run() -> None:
        written = asyncio.Event()

        def has_reached(copy: Copy) -> bool:
            if not written.is_set() or copy.position is None:
                return False
            return all(copy.position["offsets"][str(partition)] >= at for partition, at in table.last.items())

        # Each query on some stores, and three queries on each store.
        pairs = [
            (store, *_QUERIES[(at + more) % len(_QUERIES)])
            for at, store in enumerate(_FOLLOWED)
            for more in (0, 2, 5)
        ]
        pairs += [("search", *query) for query in _WORD_QUERIES]
        tasks = [asyncio.create_task(follow(*pair, has_reached)) for pair in pairs]
        for _ in range(10):
            await asyncio.to_thread(table.change)
            await asyncio.sleep(0.05)
        written.set()
        copies = await asyncio.gather(*tasks)
        for (_, request, matches), copy in zip(pairs, copies, strict=True):
            expected = table.rows((copy.position or {})["offsets"], request, matches)
            assert expected is not None
            assert copy.rows.keys() == {(key,) for key in expected}

    asyncio.run(asyncio.wait_for(run(), 100))


def _comparable(row: Thing) -> tuple[Any, ...]:
    return row["number"], row["name"], row["good"], row["day"], row["raw"], row["tags"]
