"""A record that another program wrote into a flow's topic may be served, but ``verify`` reports it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from pyspark.sql import DataFrame

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.ops.verify.verifier import Verifier


@dataclass(frozen=True)
class Cup:
    cup: str
    size: int


def test_proofs_of_view_and_flow_name_a_record_that_the_flow_did_not_write(
    flow_world: FlowWorld,
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"strangers-{mark}")
    cups = app.topic(f"cups-{mark}", Cup, key="cup")
    large = app.topic(f"large-{mark}", Cup, key="cup")
    view = app.view(f"large-{mark}", large)

    @app.flow(reads=[cups], writes=large, name=f"choose-{mark}")
    def choose(cups: DataFrame) -> DataFrame:
        return cups.where("size > 1")

    flow_world.declare(app)
    flow_world.write(cups, [Cup("a", 2), Cup("b", 1)])
    with flow_world.running(app) as run:
        run.wait_until_followed()
        flow_world.write(large, [Cup("stranger", 9)])
        flow_world.write(cups, [Cup("c", 3)])
        run.wait_until_followed()
        where = (flow_world.spark, flow_world.cluster, app, flow_world.settings(), run.compiled, run.schemas)
        with Verifier(*where) as verifier:
            served, written = verifier.view(view), verifier.flow(choose)
    for report in (served, written):
        assert (report.verdict, report.extra, report.missing, report.different) == ("different", 1, 0, 0)
        assert "stranger" in report.differences[0].key.values(), report.lines()
