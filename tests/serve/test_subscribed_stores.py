"""Views of every store are followed alike: the rows that the log's records up to a position come to, at every step."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.stores import OnRead
from tests.serve.copying import Copy, Ended, Rows, events, socket
from tests.serve.everything import STORES, everything, things
from tests.serve.http import Http
from tests.serve.serving import served
from tests.support.waiting import until
from tests.views.seeing import following

Thing = dict[str, Any]
_FOLLOWED = (*STORES, "onread")
_QUESTIONS: list[tuple[dict[str, Any], Callable[[Thing], bool]]] = [
    ({}, lambda one: True),
    ({"filter": "number >= 20 and good = true"}, lambda one: one["number"] >= 20 and one["good"] is True),
    (
        {"prefix": "t000", "filter": "price >= 3"},
        lambda one: one["thing_id"] < "t001" and (one["price"] or 0) >= 3,
    ),
    ({"from_": "t0010", "to": "t0030"}, lambda one: "t0010" <= one["thing_id"] < "t0030"),
    ({"sort": "-number"}, lambda one: True),
    ({"sort": "-number", "limit": 4}, lambda one: True),
    ({"filter": "number >= 10", "limit": 9}, lambda one: one["number"] >= 10),
]
_BY_WORDS: list[tuple[dict[str, Any], Callable[[Thing], bool]]] = [
    ({"match": "QUOTED OR padded"}, lambda one: one["name"] in _NAMES),
    (
        {"match": "quoted padded", "filter": "number < 35", "sort": "-number", "limit": 3},
        lambda one: one["name"] in _NAMES and one["number"] < 35,
    ),
]
_NAMES = ('it\'s "quoted", with\nlines', " padded ")


class _Table:
    """What was written, by partition and offset: what any position comes to is worked out here, from nothing else."""

    def __init__(self, http: Http, topic: str) -> None:
        self._path = f"/v1/topics/{topic}/records"
        self._http = http
        self._written: dict[tuple[int, int], tuple[str, Thing | None]] = {}
        self._rng = random.Random(7)
        self.last: dict[int, int] = {}

    def write(self, some: list[tuple[str, Thing | None]]) -> str:
        records = [
            {"value": value} if value is not None else {"key": {"thing_id": key}, "value": None}
            for key, value in some
        ]
        told = self._http.post(self._path, {"records": records}).expect(200)
        for at, one in zip(told["records"], some, strict=True):
            self._written[at["partition"], at["offset"]] = one
            self.last[at["partition"]] = max(at["offset"] + 1, self.last.get(at["partition"], 0))
        token: str = told["token"]
        return token

    def change(self) -> str:
        """Rows that change so that they come into a question and go out of it, and rows that are gone."""
        made = things(40)
        some: list[tuple[str, Thing | None]] = []
        for one in self._rng.sample(made, 6):
            key = str(one["thing_id"])
            other = self._rng.choice(made)
            row = {**one, "good": other["good"], "price": other["price"], "number": self._rng.randrange(40)}
            some.append((key, None if self._rng.random() < 0.25 else row))
        return self.write(some)

    def rows(
        self, offsets: dict[str, int], asked: dict[str, Any], fits: Callable[[Thing], bool]
    ) -> dict[str, Thing] | None:
        """None if more was read than is noted here yet."""
        if any(at > self.last.get(int(number), 0) for number, at in offsets.items()):
            return None
        found: dict[str, Thing] = {}
        for (partition, offset), (key, value) in sorted(self._written.items()):
            if offset < offsets[str(partition)]:
                found.pop(key, None)
                if value is not None:
                    found[key] = value
        fitting = [one for _, one in sorted(found.items()) if fits(one)]
        if "sort" in asked:
            fitting.sort(key=lambda one: -one["number"])
        return {one["thing_id"]: one for one in fitting[: asked.get("limit")]}


@pytest.fixture(scope="module")
def place(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Http, _Table]]:
    home = tmp_path_factory.mktemp("followed")
    app = everything("followed", home)
    app.view("onread_things", app.topics[0], store=OnRead())
    ensure_declared(cluster, app.topics[0], app.topics[0].name, 2)
    with contextlib.ExitStack() as stack:
        for view in app.views:
            stack.enter_context(following(cluster, view, [], home))
        http = stack.enter_context(served(app, cluster, home, frame_ms=5))
        table = _Table(http, app.topics[0].name)
        token = table.write([(str(one["thing_id"]), one) for one in things(40)])
        for view in app.views:
            until(
                lambda view=view: (
                    http.get(f"/v1/views/{view.name}/rows", after=token, wait="20s").status == 200
                ),  # type: ignore[misc]
                f"view {view.name}",
            )
        yield app, http, table


def test_a_view_of_any_store_is_followed_with_every_question(place: tuple[App, Http, _Table]) -> None:
    """All of them at once, each breaking off now and then."""
    _, http, table = place
    rng = random.Random(1)

    async def follow(
        store: str, asked: dict[str, Any], fits: Callable[[Thing], bool], reached: Callable[[Copy], bool]
    ) -> Copy:
        def check(position: dict[str, Any], rows: Rows) -> None:
            wanted = table.rows(position["offsets"], asked, fits)
            if wanted is not None:
                told = {key[0]: _seen(one) for key, one in rows.items()}
                assert told == {key: _seen(one) for key, one in wanted.items()}, (store, asked)

        copy = Copy(check)
        while not reached(copy):
            carrier: Any = rng.choice([socket, events])
            copy.connected()
            stays = rng.randrange(2, 12)
            with contextlib.suppress(Ended):
                async with carrier(http.port, f"{store}_things", copy.cursor, **asked) as (_, messages):
                    async for told in messages:
                        copy.take(told)
                        stays -= 1
                        if reached(copy) or stays < 0:
                            break
        assert "reset" not in [kind for kind, _ in copy.seen], store
        return copy

    async def run() -> None:
        written = asyncio.Event()

        def reached(copy: Copy) -> bool:
            if not written.is_set() or copy.position is None:
                return False
            return all(copy.position["offsets"][str(one)] >= at for one, at in table.last.items())

        # Each question of some stores, and three questions of each.
        pairs = [
            (store, *_QUESTIONS[(at + more) % len(_QUESTIONS)])
            for at, store in enumerate(_FOLLOWED)
            for more in (0, 2, 5)
        ]
        pairs += [("search", *one) for one in _BY_WORDS]
        tasks = [asyncio.create_task(follow(*one, reached)) for one in pairs]
        for _ in range(10):
            await asyncio.to_thread(table.change)
            await asyncio.sleep(0.05)
        written.set()
        copies = await asyncio.gather(*tasks)
        for (_, asked, fits), copy in zip(pairs, copies, strict=True):
            wanted = table.rows((copy.position or {})["offsets"], asked, fits)
            assert wanted is not None
            assert copy.rows.keys() == {(key,) for key in wanted}

    asyncio.run(asyncio.wait_for(run(), 100))


def _seen(row: Thing) -> tuple[Any, ...]:
    return row["number"], row["name"], row["good"], row["day"], row["raw"], row["tags"]
