"""Rates and percentiles of windows, compared with sums computed by hand."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from headrace.app import App
from tests.flow.topic_contents import last_values
from tests.verify.planted_faults import verifier

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE_S = 60


@dataclass(frozen=True)
class Request:
    route: str
    took_ms: int
    at: datetime


def summary(requests: DataFrame) -> DataFrame:
    minutes = requests.groupBy("route", F.window("at", "1 minute").alias("window"))
    found = minutes.agg(
        (F.count(F.lit(1)) / MINUTE_S).alias("per_second"),
        F.percentile("took_ms", F.array(F.lit(0.5), F.lit(0.99))).alias("percentiles"),
    )
    return found.select("route", F.col("window.start").alias("minute"), "per_second", "percentiles")


def test_rates_and_percentiles_of_windows_are_those_of_all_their_events(flow_world: FlowWorld) -> None:
    mark, rng = uuid.uuid4().hex[:8], random.Random(7)
    app = App(f"rates-{mark}")
    requests = app.topic(f"requests-{mark}", Request, time="at", late=timedelta(minutes=5))
    routes = app.topic(f"routes-{mark}", key=["route", "minute"])
    flow = app.flow(reads=[requests], writes=routes, name=f"rates-{mark}")(summary)
    sent = [
        Request(f"r{rng.randrange(3)}", rng.randrange(1_000), BEGIN + timedelta(seconds=rng.randrange(180)))
        for _ in range(200)
    ]
    flow_world.declare(app)
    flow_world.write(requests, sent)
    with flow_world.running(app, max_rows=70, follow=False) as run:
        run.wait_until_derived()
    took: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for event in sent:
        took[event.route, int((event.at - BEGIN).total_seconds()) // MINUTE_S].append(event.took_ms)
    rows = last_values(flow_world.cluster.bootstrap, routes.name).values()
    assert len(rows) == len(took)
    for row in rows:
        minute = datetime.fromisoformat(row["minute"])
        values = took[row["route"], int((minute - BEGIN).total_seconds()) // MINUTE_S]
        assert row["per_second"] == pytest.approx(len(values) / MINUTE_S)
        assert row["percentiles"] == pytest.approx(list(np.percentile(values, [50, 99])))
    with verifier(run) as one_verifier:
        report = one_verifier.flow(flow)
    assert report.proven, report.lines()
