"""Reads of the Python client: every kind of query; rows as values, objects, Arrow and pandas; own writes."""

from __future__ import annotations

import inspect
import math
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from subprocess import run

import pyarrow as pa
import pytest

from faults.serve.http import Http
from headrace import remote as package
from headrace.app import App
from headrace.remote import InvalidRequest, Late, NotFound, Remote, literal
from tests.remote.clients import new_async_remote, new_remote
from tests.remote.market import Fruit, Order, Origin, Taste

FULL = Fruit(
    "full/..?#%2F ä",
    Decimal("12345678901.123456"),
    2**62 + 1,
    math.inf,
    True,
    datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
    date(2026, 2, 28),
    b"\x00\xff",
    Taste.SOUR,
    ["pear", "Birne"],
    {"here": 2**53 + 1},
    Origin("CH", 1800),
)


def _names(app: App) -> tuple[str, str]:
    return app.topics[0].name, app.views[0].name


def test_a_row_of_every_kind_is_read_as_it_was_written(remote: Remote, app: App) -> None:
    topic, view = _names(app)
    remote.topic(topic).write(FULL)
    assert remote.view(view, Fruit).get(FULL.fruit_id) == FULL
    row = remote.view(view).get(FULL.fruit_id)
    assert row is not None
    assert (row["price"], row["pieces"], row["picture"]) == (FULL.price, FULL.pieces, FULL.picture)
    assert (row["picked"], row["stock"], row["taste"]) == (FULL.picked, FULL.stock, "sour")
    again = [record.value for record in remote.topic(topic, Fruit).records() if record.key == FULL.fruit_id]
    assert again[-1] == FULL


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "%2e%2e", "x y", "ä?#&", '"', "x" * 300])
def test_a_key_may_be_any_text(remote: Remote, app: App, key: str) -> None:
    topic, view = _names(app)
    if key:
        remote.topic(topic).write(Fruit(key, Decimal(1)))
        assert remote.view(view, Fruit).get(key) == Fruit(key, Decimal(1))
    assert remote.view(view).get(f"{key}-none") is None


def test_rows_are_queried_by_key_range_filter_and_sort_in_pages(remote: Remote, app: App) -> None:
    topic, view = app.topics[1].name, app.views[1].name
    orders = [Order(f"o{number:03}", "range", number) for number in range(50)]
    assert remote.topic(topic).write_many(orders, size=20).requests == 3
    found = remote.view(view, Order)
    assert list(found.rows(prefix={"fruit_id": "range"}, page_rows=7)) == orders
    begin, end = ({"fruit_id": "range", "order_id": order_id} for order_id in ("o010", "o013"))
    assert found.rows(begin=begin, end=end).all() == orders[10:13]
    request = f"fruit_id = {literal('range')} and pieces >= 40"
    assert [row.pieces for row in found.rows(filter=request, sort="-pieces", limit=3, page_rows=2)] == [
        49,
        48,
        47,
    ]
    assert found.get({"order_id": "o007", "fruit_id": "range"}) == orders[7]
    assert found.rows(filter='fruit_id = "none"').first() is None
    pages = list(found.rows(prefix={"fruit_id": "range"}, page_rows=20).pages())
    assert [len(page.rows) for page in pages] == [20, 20, 10]
    assert pages[-1].next is None


def test_arrow_and_pandas_tables_are_exact_and_of_one_position(remote: Remote, app: App) -> None:
    topic, view = _names(app)
    rows = [Fruit(f"nb{number}", Decimal(number) / 4, number or None, float(number)) for number in range(5)]
    remote.topic(topic).write(*rows, FULL)
    request = remote.view(view).rows(prefix="nb", page_rows=2)
    table = request.arrow()
    assert table.schema.field("price").type == pa.decimal128(18, 6)
    assert table.schema.field("picked").type == pa.timestamp("us", tz="UTC")
    assert table.schema.field("stock").type == pa.map_(pa.string(), pa.int64())
    assert table["price"].to_pylist() == [Decimal(number) / 4 for number in range(5)]
    assert b"headrace.position." + view.encode() in table.schema.metadata
    frame = request.pandas()
    assert frame["pieces"].tolist()[1:] == [1, 2, 3, 4]
    assert frame["pieces"].isna().tolist() == [True, False, False, False, False]
    assert frame["price"].sum() == Decimal("2.5")
    assert view in frame.attrs["headrace.positions"]
    row = remote.view(view).rows(filter=f"fruit_id = {literal(FULL.fruit_id)}").arrow().to_pylist()[0]
    assert (row["pieces"], row["price"], row["origin"]) == (
        FULL.pieces,
        FULL.price,
        {"country": "CH", "altitude": 1800},
    )
    assert request.table().positions[view].offsets == remote.view(view).describe().position.offsets  # type: ignore[union-attr]
    assert remote.view(view).rows(prefix="no such").pandas().empty


def test_a_read_waits_for_the_clients_own_writes_in_every_partition(remote: Remote, app: App) -> None:
    topic, view = _names(app)
    for number in range(3):
        positions = [
            remote.topic(topic).write(Fruit(f"own{n}", Decimal(number))).records[0].partition
            for n in range(4)
        ]
        assert len(set(positions)) > 1
        found = remote.view(view).rows(prefix="own").all()
        assert [entry["price"] for entry in found] == [number] * 4
        remote.topic(topic).delete({"fruit_id": "own0"})
        assert remote.view(view).get("own0") is None


def test_a_read_does_not_wait_for_writes_to_unrelated_topics(remote: Remote, app: App, server: Http) -> None:
    topic, other = app.topics[1].name, app.views[0].name
    remote.topic(topic).write(Order("elsewhere", "e", 1))
    assert remote.view(other).rows(limit=1).all() is not None
    # After writes to both topics, the view waits only for its own topic.
    remote.topic(app.topics[0].name).write(Fruit("both", Decimal(3)))
    assert remote.view(other, Fruit).get("both") == Fruit("both", Decimal(3))
    token = remote.topic(topic).write(Order("elsewhere", "e", 2)).token
    with new_remote(server) as second, pytest.raises(InvalidRequest) as refused:
        second.view(other).rows(after=token).all()
    assert refused.value.code == "HR-SERVE-AFTER"


def test_problems_become_errors_with_code_and_hint(remote: Remote, app: App, server: Http) -> None:
    view = app.views[0].name
    with pytest.raises(InvalidRequest) as refused:
        remote.view(view).rows(filter="price >").all()
    assert refused.value.code == "HR-SERVE-FILTER"
    assert (refused.value.status, bool(refused.value.request_id)) == (400, True)
    with pytest.raises(NotFound) as missing:
        remote.view("no such view").get("x")
    assert missing.value.code == "HR-SERVE-NOT-THERE"
    with pytest.raises(InvalidRequest) as unknown_field:
        remote.topic(app.topics[0].name).write({"fruit_id": "x", "colour": "red"})
    assert unknown_field.value.code == "HR-SERVE-REQUEST"
    assert "GET /v1/topics/" in unknown_field.value.hint
    assert [view.view for view in remote.views()] == [view.name for view in app.views]


async def test_the_asyncio_client_reads_the_same(server: Http, app: App) -> None:
    topic, view = _names(app)
    async with new_async_remote(server) as remote:
        await remote.topic(topic).write(Fruit("async1", Decimal(1)), Fruit("async2", Decimal(2)))
        assert await remote.view(view, Fruit).get("async1") == Fruit("async1", Decimal(1))
        rows = remote.view(view, Fruit).rows(prefix="async", page_rows=1)
        assert [row.fruit_id async for row in rows] == ["async1", "async2"]
        assert len(await rows.all()) == len(await rows.arrow()) == len(await rows.pandas()) == 2
        assert await rows.first() == Fruit("async1", Decimal(1))
        keys = [
            record.key
            async for record in remote.topic(topic).records()
            if (record.key or "").startswith("async")
        ]
        assert sorted(key or "" for key in keys) == ["async1", "async2"]
        written = await remote.topic(topic).write_many([Fruit("async3", Decimal(3))])
        assert (written.records, written.requests) == (1, 1)
        assert await remote.view(view, Fruit).get("async3", after=written) == Fruit("async3", Decimal(3))
        with pytest.raises(InvalidRequest):
            await remote.view(view).rows(sort="none").all()


@pytest.mark.parametrize("name", ["Remote", "View", "Rows", "Sql", "Topic", "Changes"])
def test_both_clients_have_the_same_methods_with_the_same_parameters(name: str) -> None:
    def signatures(kind: type) -> dict[str, list[str]]:
        return {
            method_name: list(inspect.signature(member).parameters)
            for method_name, member in vars(kind).items()
            if callable(member) and not method_name.startswith("_")
        }

    assert signatures(getattr(package, name)) == signatures(getattr(package, f"Async{name}"))


def test_a_client_loads_neither_spark_nor_the_log_nor_arrow() -> None:
    heavy = {"pyspark", "confluent_kafka", "pyarrow", "pandas", "httpx", "starlette"}
    code = f"import sys, headrace.remote; print([one for one in sys.modules if one.split('.')[0] in {heavy}])"
    process = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_a_read_of_a_stopped_view_times_out_with_its_position(remote: Remote, app: App) -> None:
    position = remote.view(app.views[0].name).rows(limit=1).table().positions[app.views[0].name]
    with pytest.raises(Late) as late:
        # A token of a future position.
        remote.view(app.views[0].name).get("x", after=_beyond(position.token), wait_s=0.05)
    assert late.value.code == "HR-SERVE-LATE"
    assert late.value.position is not None


def _beyond(token: str) -> str:
    from headrace.serve.query.position_token import PositionToken, TopicPosition

    found = PositionToken.parse(token)
    return PositionToken.of(
        {
            name: TopicPosition(
                position.topic_id, {number: at + 1_000 for number, at in position.ends.items()}
            )
            for name, position in found.topics.items()
        }
    ).encode()
