"""``examples/shop``, followed into five stores. Its stories run once, with its traffic.

The tests compare the copies with the topic, whose rows they compute with a plain consumer, and verify every view and
topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal

import pytest

from examples.shop import enrich_orders, orders
from examples.shop.copies import Outcome, play
from examples.shop.everywhere import app
from faults.flows.world import FlowWorld
from faults.servers.postgres import shared_server
from faults.servers.redis import fresh_database, shared
from headrace.client.progress import current
from headrace.flow.compile.compiler import compile_app
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import Verifier
from tests.examples.conftest import PlayedStage, expect_page
from tests.examples.sales_stores import Row, Stores
from tests.flow.topic_contents import last_values

COPIES = ["sales", "sales_sql", "sales_cache", "sales_found", "sales_lake"]

# The first test runs all stories, so it takes longest.


@pytest.fixture(scope="module")
def stores(played: PlayedStage) -> Iterator[Stores]:
    server, number = shared_server(), fresh_database()
    database, redis = server.database(), shared().client(number)
    redis.flushdb()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_DATABASE", server.url(database))
        patch.setenv("SHOP_REDIS", f"{shared().url}?db={number}")
        yield Stores(played.stage.data, server, database, redis)
    server.drop(database)


@pytest.fixture(scope="module")
def outcome(played: PlayedStage, stores: Stores) -> Outcome:
    return play(played.stage)


@contextmanager
def open_verifier(world: FlowWorld, played: PlayedStage) -> Iterator[Verifier]:
    arguments = (world.spark, world.cluster, app, played.stage.settings)
    with Verifier(*arguments, *compile_app(world.spark, app)) as verifier:
        yield verifier


def topic_rows(world: FlowWorld) -> dict[str, Row]:
    rows = last_values(world.cluster.bootstrap, "sales")
    return {
        order: (
            row["product_id"],
            row["quantity"],
            None if row["amount"] is None else Decimal(str(row["amount"])),
        )
        for order, row in rows.items()
    }


def test_five_stores_have_the_rows_of_the_topic_and_a_dump_is_outdated(
    flow_world: FlowWorld, stores: Stores, outcome: Outcome
) -> None:
    expected = topic_rows(flow_world)
    assert len(expected) > 400
    rows_by_view = stores.rows()
    assert list(rows_by_view) == COPIES
    for view, rows in rows_by_view.items():
        assert rows == expected, view
    assert outcome.dump < set(expected)
    assert outcome.left_behind == outcome.rows["sales_sql"] - len(outcome.dump) > 50


def test_views_are_added_while_the_old_view_serves(outcome: Outcome) -> None:
    assert outcome.served_at_least == len(outcome.dump)
    assert set(outcome.rows) == set(COPIES)
    assert len(set(outcome.rows.values())) == 1


def test_a_view_name_moves_to_another_store_without_a_change_of_the_writers(
    flow_world: FlowWorld, outcome: Outcome
) -> None:
    assert outcome.switched == [{"name": "sales", "before": "sales", "now": "sales_sql"}]
    assert outcome.answered == set(topic_rows(flow_world))
    assert outcome.generations == {1}


def test_every_view_of_the_shop_is_proven_and_invalid_events_are_counted(
    flow_world: FlowWorld, played: PlayedStage, outcome: Outcome
) -> None:
    with open_verifier(flow_world, played) as verifier:
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


def test_the_page_of_an_example_shows_its_output(outcome: Outcome, played: PlayedStage) -> None:
    expect_page("shop", played.lines)


def test_verify_reports_exactly_the_wrong_row_in_each_store(
    flow_world: FlowWorld, played: PlayedStage, stores: Stores, outcome: Outcome
) -> None:
    """Runs last, because it leaves wrong rows."""
    wrong = dict(zip(COPIES, sorted(outcome.answered), strict=False))
    for view, order in wrong.items():
        stores.write_wrong_quantity(view, order)
    differences = {}
    with open_verifier(flow_world, played) as verifier:
        for view in app.views:
            if view.topic.name == "sales":
                report = verifier.view(view)
                assert report.exit_code == 1
                differences[view.name] = [
                    (difference.kind, difference.key, difference.columns) for difference in report.differences
                ]
    assert differences == {
        view: [("different", {"order_id": order}, ["quantity"])] for view, order in wrong.items()
    }
