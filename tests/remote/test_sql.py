"""SQL through the client: Python values, Arrow, pandas, positions, and what was written."""

from __future__ import annotations

from decimal import Decimal

import pytest

from headrace.app import App
from headrace.remote import AnswerUnfit, Remote, Unfit
from tests.remote.asking import asking_async
from tests.remote.market import Fruit, Order
from tests.remote.test_reading import FULL
from tests.serve.http import Http


def test_a_statement_shows_what_was_written_in_all_its_views(remote: Remote, app: App) -> None:
    fruits, orders = (f'"{one.name}"' for one in app.views)
    remote.topic(app.topics[0].name).write(Fruit("sql1", Decimal("2.5")), Fruit("sql2", Decimal("0.1")), FULL)
    remote.topic(app.topics[1].name).write(Order("o1", "sql1", 3), Order("o2", "sql1", 4))
    asked = remote.sql(
        f"SELECT f.fruit_id, sum(o.pieces * f.price) AS worth, count(*) AS n FROM {fruits} f JOIN {orders} o"
        " USING (fruit_id) WHERE f.fruit_id LIKE $1 GROUP BY ALL",
        "sql%",
    )
    (row,) = asked.all()
    assert (row["fruit_id"], row["worth"], row["n"]) == ("sql1", Decimal("17.5"), 2)
    assert set(asked.rows().positions) == {one.name for one in app.views}
    frame = asked.pandas()
    assert frame["worth"].tolist() == [Decimal("17.5")]
    assert set(frame.attrs["headrace.positions"]) == {one.name for one in app.views}
    everything = remote.sql(f"SELECT * FROM {fruits} WHERE fruit_id = $1", FULL.fruit_id)
    (whole,) = everything.all()
    assert (whole["price"], whole["pieces"], whole["picked"]) == (FULL.price, FULL.pieces, FULL.picked)
    assert (whole["picture"], whole["best_before"], whole["weight"]) == (
        FULL.picture,
        FULL.best_before,
        FULL.weight,
    )
    assert whole["stock"] == FULL.stock
    assert everything.arrow()["price"].to_pylist() == [FULL.price]


def test_a_statement_that_cannot_be_is_refused_with_its_reason(remote: Remote, app: App) -> None:
    with pytest.raises(Unfit) as unfit:
        remote.sql("DELETE FROM nothing").all()
    assert unfit.value.code.startswith("HR-")
    with pytest.raises(AnswerUnfit, match="one name"):
        remote.sql("SELECT 1 AS a, 2 AS a").all()
    assert remote.sql("SELECT 1 AS a, 2 AS a").rows().rows == [(1, 2)]


async def test_an_event_loop_asks_as_well(server: Http) -> None:
    async with asking_async(server) as remote:
        assert await remote.sql("SELECT 1.50 AS a").all() == [{"a": Decimal("1.50")}]
        assert (await remote.sql("SELECT 2 AS b").pandas())["b"].tolist() == [2]
