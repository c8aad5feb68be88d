"""A flow without output still counts its input and keeps its dead letters."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.client.progress import current
from headrace.ops.verify.report import Report
from tests.flow.topic_contents import committed
from tests.verify.planted_faults import verifier

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
    """An empty frame that Spark recognizes as empty only at run time."""
    numbers = clicks.sparkSession.range(3).where("id > 5")
    return F.broadcast(numbers.select(F.col("id").cast("string").alias("page")))


NEVER: dict[str, Function] = {
    "a filter that is never true": lambda clicks, _: clicks.where(F.lit(False)),
    "a filter that contradicts itself": lambda clicks, _: clicks.where(
        "click_id IS NULL AND click_id IS NOT NULL"
    ),
    "a join with a range that is empty at run time": lambda clicks, _: clicks.join(_nothing(clicks), "page"),
    "a join with a false condition": lambda clicks, pages: clicks.join(pages, F.lit(False)).select(
        "click_id"
    ),
    "a join with an empty table": lambda clicks, pages: clicks.join(pages.where("1 = 2"), "page"),
}


@pytest.mark.parametrize("name", NEVER)
def test_a_flow_without_output_counts_its_input(flow_world: FlowWorld, name: str) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"never-{mark}")
    clicks = app.topic(f"clicks-{mark}", Click, key="click_id")
    pages = app.table(f"pages-{mark}", Page, key="page")

    if "join" in name:

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
        run.wait_until_derived()
        with verifier(run) as verifying:
            (report,) = verifying.all()
    assert isinstance(report, Report)
    # The proof compares the flow's counts, including dead letters, with counts of the log.
    assert report.proven, report.lines()
    progress = current(flow_world.cluster, flow.progress_topic)
    assert progress is not None
    assert progress.last is not None
    assert (progress.last.totals.rows_in, progress.last.totals.dead, progress.last.totals.rows_out) == (
        3,
        1,
        0,
    )
    assert [record.value() for record in committed(flow_world.cluster.bootstrap, flow.dead_topic)] == [b"{"]
