"""A flow that can put out nothing still counts what it has read, and keeps what does not fit."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.client.progress_log import current
from headrace.ops.report import Report
from tests.flow.reading import committed
from tests.support.flows import FlowWorld
from tests.verify.planting import verifier

Function = Callable[[DataFrame, DataFrame], DataFrame]


@dataclass(frozen=True)
class Click:
    click_id: str
    page: str


@dataclass(frozen=True)
class Page:
    page: str
    title: str


def _nothing(clicks: DataFrame) -> DataFrame:
    """Of which Spark knows that it is empty only when it runs."""
    numbers = clicks.sparkSession.range(3).where("id > 5")
    return F.broadcast(numbers.select(F.col("id").cast("string").alias("page")))


NEVER: dict[str, Function] = {
    "a filter that is never true": lambda clicks, _: clicks.where(F.lit(False)),
    "a filter against itself": lambda clicks, _: clicks.where("click_id IS NULL AND click_id IS NOT NULL"),
    "what a range turns out not to have": lambda clicks, _: clicks.join(_nothing(clicks), "page"),
    "a join on nothing": lambda clicks, pages: clicks.join(pages, F.lit(False)).select("click_id"),
    "an intersection with nothing": lambda clicks, pages: clicks.join(pages.where("1 = 2"), "page"),
}


@pytest.mark.parametrize("name", NEVER)
def test_a_flow_that_never_puts_anything_out_counts_what_it_reads(flow_world: FlowWorld, name: str) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"never-{mark}")
    clicks = app.topic(f"clicks-{mark}", Click, key="click_id")
    pages = app.table(f"pages-{mark}", Page, key="page")

    if "join" in name or "intersection" in name:

        @app.flow(reads=[clicks, pages], writes=app.topic(f"none-{mark}", key="click_id"), name=f"f-{mark}")
        def flow(clicks: DataFrame, pages: DataFrame) -> DataFrame:
            return NEVER[name](clicks, pages).select("click_id")

    else:

        @app.flow(reads=[clicks], writes=app.topic(f"none-{mark}", key="click_id"), name=f"f-{mark}")
        def flow(clicks: DataFrame) -> DataFrame:
            return NEVER[name](clicks, clicks).select("click_id")

    flow_world.declare(app)
    flow_world.write(pages, [Page("a", "A")])
    flow_world.write(clicks, [Click("c1", "a"), (b"broken", b"{"), Click("c2", "a")])
    with flow_world.running(app, follow=False) as run:
        run.derived()
        with verifier(run) as verifying:
            (report,) = verifying.all()
    assert isinstance(report, Report)
    # Its counts, those of dead letters among them, are compared with what the log gives now.
    assert report.proven, report.lines()
    found = current(flow_world.cluster, flow.progress_topic)
    assert found is not None
    assert found.last is not None
    assert (found.last.totals.rows_in, found.last.totals.dead, found.last.totals.rows_out) == (3, 1, 0)
    assert [one.value() for one in committed(flow_world.cluster.bootstrap, flow.dead_topic)] == [b"{"]
