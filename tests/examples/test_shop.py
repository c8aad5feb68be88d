"""The shop of ``examples/shop``, followed into five stores: its stories are played once, over its traffic. The copies
are held against the topic, which a stock reader folds; and every view and every topic between is proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest

from examples.shop import enrich_orders, orders
from examples.shop.copies import Told, play
from examples.shop.everywhere import app
from headrace.client.progress_log import current
from headrace.flow.compiling import compile_app
from headrace.ops.report import Report
from headrace.ops.verify import Verifier
from tests.examples.conftest import Heard, expect_page
from tests.examples.planting import Row, Stores
from tests.flow.reading import folded
from tests.support.flows import FlowWorld
from tests.support.postgres import shared_server
from tests.support.redis import fresh_database, shared

COPIES = ["sales", "sales_sql", "sales_cache", "sales_found", "sales_lake"]

# All of it is played for the first test, which takes its time on a busy machine.


@pytest.fixture(scope="module")
def stores(heard: Heard) -> Iterator[Stores]:
    server, number = shared_server(), fresh_database()
    database, redis = server.database(), shared().client(number)
    redis.flushdb()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_DATABASE", server.url(database))
        patch.setenv("SHOP_REDIS", f"{shared().url}?db={number}")
        yield Stores(heard.stage.data, server, database, redis)
    server.drop(database)


@pytest.fixture(scope="module")
def told(heard: Heard, stores: Stores) -> Told:
    return play(heard.stage)


@contextmanager
def verifying(world: FlowWorld, heard: Heard) -> Iterator[Verifier]:
    where = (world.spark, world.cluster, app, heard.stage.settings)
    with Verifier(*where, *compile_app(world.spark, app)) as verifier:
        yield verifier


def topic_rows(world: FlowWorld) -> dict[str, Row]:
    rows = folded(world.cluster.bootstrap, "sales")
    return {
        order: (
            row["product_id"],
            row["quantity"],
            None if row["amount"] is None else Decimal(str(row["amount"])),
        )
        for order, row in rows.items()
    }


def test_five_stores_have_what_the_topic_has_and_a_dump_has_what_it_was(
    flow_world: FlowWorld, stores: Stores, told: Told
) -> None:
    right = topic_rows(flow_world)
    assert len(right) > 400
    found = stores.rows()
    assert list(found) == COPIES
    for view, rows in found.items():
        assert rows == right, view
    assert told.dump < set(right)
    assert told.left_behind == told.rows["sales_sql"] - len(told.dump) > 50


def test_read_models_are_added_while_the_old_one_serves(told: Told) -> None:
    assert told.served_at_least == len(told.dump)
    assert set(told.rows) == set(COPIES)
    assert len(set(told.rows.values())) == 1


def test_a_name_is_answered_by_another_store_and_who_writes_is_not_touched(
    flow_world: FlowWorld, told: Told
) -> None:
    assert told.switched == [{"name": "sales", "before": "sales", "now": "sales_sql"}]
    assert told.answered == set(topic_rows(flow_world))
    assert told.generations == {1}


def test_every_view_of_the_shop_is_proven_and_what_makes_no_sense_is_counted(
    flow_world: FlowWorld, heard: Heard, told: Told
) -> None:
    with verifying(flow_world, heard) as verifier:
        reports = list(verifier.all())
    assert len(reports) == len(app.views) + len(app.flows)
    for report in reports:
        assert isinstance(report, Report), report
        assert report.exit_code == 0, report.lines()
    progress = current(flow_world.cluster, enrich_orders.progress_topic)
    assert progress is not None
    assert progress.last is not None
    totals = progress.last.totals
    assert totals.dead == 1
    assert (
        totals.rows_in
        == totals.rows_out + totals.late + totals.dead
        == flow_world.cluster.ends(orders.name)[0]
    )


def test_the_page_shows_what_is_said(told: Told, heard: Heard) -> None:
    expect_page("shop", heard.lines)


def test_a_wrong_row_in_each_store_is_named_and_no_other(
    flow_world: FlowWorld, heard: Heard, stores: Stores, told: Told
) -> None:
    """The last one, since it leaves them wrong."""
    wrong = dict(zip(COPIES, sorted(told.answered), strict=False))
    for view, order in wrong.items():
        stores.plant(view, order)
    named = {}
    with verifying(flow_world, heard) as verifier:
        for view in app.views:
            if view.topic.name == "sales":
                report = verifier.view(view)
                assert report.exit_code == 1
                named[view.name] = [(one.kind, one.key, one.columns) for one in report.differences]
    assert named == {
        view: [("different", {"order_id": order}, ["quantity"])] for view, order in wrong.items()
    }
