"""SQL of the Python client: values, Arrow, pandas, positions, and own writes."""

from __future__ import annotations

from decimal import Decimal

import pytest

from faults.serve.http import Http
from headrace.app import App
from headrace.remote import InvalidRequest, InvalidResponse, Remote
from tests.remote.clients import new_async_remote
from tests.remote.market import Fruit, Order
from tests.remote.test_reads import FULL


def test_a_statement_reads_the_clients_own_writes_in_all_its_views(remote: Remote, app: App) -> None:
    fruits, orders = (f'"{view.name}"' for view in app.views)
    remote.topic(app.topics[0].name).write(Fruit("sql1", Decimal("2.5")), Fruit("sql2", Decimal("0.1")), FULL)
    remote.topic(app.topics[1].name).write(Order("o1", "sql1", 3), Order("o2", "sql1", 4))
    request = remote.sql(
        f"SELECT f.fruit_id, sum(o.pieces * f.price) AS worth, count(*) AS n FROM {fruits} f JOIN {orders} o"
        " USING (fruit_id) WHERE f.fruit_id LIKE $1 GROUP BY ALL",
        "sql%",
    )
    (row,) = request.all()
    assert (row["fruit_id"], row["worth"], row["n"]) == ("sql1", Decimal("17.5"), 2)
    assert set(request.rows().positions) == {view.name for view in app.views}
    frame = request.pandas()
    assert frame["worth"].tolist() == [Decimal("17.5")]
    assert set(frame.attrs["headrace.positions"]) == {view.name for view in app.views}
    everything = remote.sql(f"SELECT * FROM {fruits} WHERE fruit_id = $1", FULL.fruit_id)
    (full_row,) = everything.all()
    assert (full_row["price"], full_row["pieces"], full_row["picked"]) == (
        FULL.price,
        FULL.pieces,
        FULL.picked,
    )
    assert (full_row["picture"], full_row["best_before"], full_row["weight"]) == (
        FULL.picture,
        FULL.best_before,
        FULL.weight,
    )
    assert full_row["stock"] == FULL.stock
    assert everything.arrow()["price"].to_pylist() == [FULL.price]


def test_an_invalid_statement_is_refused_with_its_reason(remote: Remote, app: App) -> None:
    with pytest.raises(InvalidRequest) as refused:
        remote.sql("DELETE FROM nothing").all()
    assert refused.value.code.startswith("HR-")
    with pytest.raises(InvalidResponse, match="the same name"):
        remote.sql("SELECT 1 AS a, 2 AS a").all()
    assert remote.sql("SELECT 1 AS a, 2 AS a").rows().rows == [(1, 2)]


async def test_the_asyncio_client_runs_statements(server: Http) -> None:
    async with new_async_remote(server) as remote:
        assert await remote.sql("SELECT 1.50 AS a").all() == [{"a": Decimal("1.50")}]
        assert (await remote.sql("SELECT 2 AS b").pandas())["b"].tolist() == [2]
