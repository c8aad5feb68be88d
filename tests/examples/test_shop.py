"""The shop of ``examples/shop``: its flows over its traffic, and the proof of every view and every topic between."""

from __future__ import annotations

from datetime import UTC, datetime

from examples.shop import app, enrich_orders, orders
from examples.shop.traffic import Traffic
from headrace.client.progress_log import current
from headrace.ops.report import Report
from headrace.ops.verify import Verifier
from tests.support.flows import FlowWorld


def test_every_view_of_the_shop_is_proven_and_what_makes_no_sense_is_counted(flow_world: FlowWorld) -> None:
    flow_world.declare(app)
    traffic = Traffic(flow_world.cluster)
    with flow_world.running(app) as run:
        for number in range(20):
            traffic.price(number)
        for _ in range(300):
            traffic.order(datetime.now(UTC))
        for _ in range(200):
            traffic.click(datetime.now(UTC))
        traffic.nonsense()
        traffic.flush()
        run.followed()
        traffic.price(3)
        traffic.order(datetime.now(UTC))
        traffic.flush()
        run.followed()
        verifier = Verifier(
            flow_world.spark, flow_world.cluster, app, flow_world.settings(), run.compiled, run.schemas
        )
        with verifier:
            reports = list(verifier.all())
    assert len(reports) == len(app.views) + len(app.flows)
    for report in reports:
        assert isinstance(report, Report), report
        assert report.proven, report.lines()
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
