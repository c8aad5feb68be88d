"""Scheduled proofs beside a running app: a difference is reported at once, and again at the end."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import IO, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from faults.wait import until
from headrace.app import App
from headrace.flow.spark.conf import spark_conf
from headrace.model.declarations import Topic
from headrace.ops.verify.report import last_reports
from headrace.runtime.proofs import Proofs
from headrace.settings import Settings, VerifySettings
from tests.cli.runner import Headrace
from tests.verify import little

VIEW = "little-orders"


@dataclass(frozen=True)
class Cup:
    cup: str
    size: int


def printed_lines(stdout: IO[bytes] | None) -> Iterator[dict[str, Any]]:
    assert stdout is not None
    yield from map(json.loads, stdout)


def test_a_run_verifies_its_views_and_exits_with_1_if_one_differs(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    flow_world.declare(little.app)
    flow_world.write(little.orders, [little.Order("a", 1), little.Order("b", 2)])
    words = ("run", "tests.verify.little:app", "--json", "--verify-every", "1", "--data", str(tmp_path))
    with Headrace(flow_world.cluster.bootstrap).started(*words) as process:
        lines = printed_lines(process.stdout)
        summaries = (line["views"][0] for line in lines if line["kind"] == "summary")
        assert (
            next(item for item in summaries if item["verified"].startswith("proven at "))["differs"] is False
        )
        with closing(sqlite3.connect(tmp_path / "little.db")) as connection, connection:
            connection.execute(f'UPDATE "{VIEW}" SET amount = 7 WHERE "order" = \'b\'')
        warned = next(line["text"] for line in lines if line["kind"] == "warning")
        assert warned.startswith(f"view {VIEW}: NOT AS DERIVED: 1 different")
        # Even after a repair and Ctrl-C, the exit code shows that a wrong row was once served.
        with closing(sqlite3.connect(tmp_path / "little.db")) as connection, connection:
            connection.execute(f'UPDATE "{VIEW}" SET amount = 2 WHERE "order" = \'b\'')
        summaries = (line["views"][0] for line in lines if line["kind"] == "summary")
        assert (
            next(item for item in summaries if item["verified"].startswith("proven at "))["differs"] is True
        )
        process.send_signal(signal.SIGINT)
        rest = list(lines)
        assert process.wait(60) == 1
    assert f"view {VIEW} was NOT AS DERIVED" in rest[-1]["text"]


@contextmanager
def traffic(world: FlowWorld, cups: Topic) -> Iterator[None]:
    ends = threading.Event()

    def send() -> None:
        for number in count(1):
            if ends.wait(0.1):
                return
            world.write(cups, [Cup(f"more-{number}-{size}", size) for size in range(3)])

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ends.set()
        sender.join(30)


def batch_proven(proofs: Proofs, view: str) -> int:
    """The last offset of the last proof; -1 before the first proof."""
    found = re.match(r"proven through batch (\d+)", proofs.last(view))
    return int(found[1]) if found else -1


def test_derived_views_are_verified_under_traffic_and_a_stop_does_not_wait(
    flow_world: FlowWorld,
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"schedule-{mark}")
    cups = app.topic(f"cups-{mark}", Cup, key="cup")
    sizes = app.topic(f"sizes-{mark}", key="size")
    view = app.view(f"sizes-{mark}", sizes)

    @app.flow(reads=[cups], writes=sizes, name=f"count-{mark}", unbounded=True)
    def counted(cups: DataFrame) -> DataFrame:
        return cups.groupBy("size").agg(F.count(F.lit(1)).alias("cups"))

    settings = replace(flow_world.settings(), verify=VerifySettings(every_s=1))
    warned: list[str] = []
    stop = threading.Event()
    flow_world.declare(app)
    flow_world.write(cups, [Cup(f"c{number}", number % 3) for number in range(30)])
    with flow_world.running(app) as run:
        where = (flow_world.spark, flow_world.cluster, app, settings, run.compiled, run.schemas)
        proofs = Proofs(*where, note=lambda line: None, warn=warned.append)
        proving = threading.Thread(target=proofs.run, args=(stop,))
        proving.start()
        try:
            with traffic(flow_world, cups):
                until(lambda: batch_proven(proofs, view.name) > 0, "a proof", timeout_s=480)
                first = batch_proven(proofs, view.name)
                until(lambda: batch_proven(proofs, view.name) > first, "a proof of more", timeout_s=480)
            run.wait_until_followed()
            with closing(sqlite3.connect(flow_world.home / f"{app.name}.db")) as connection, connection:
                connection.execute(f'DELETE FROM "{view.name}" WHERE size = 1')
            until(lambda: proofs.differs, "the difference is found", timeout_s=480)
        finally:
            stop.set()
            proofs.cancel()
            proving.join(60)
    assert not proving.is_alive()
    assert proofs.differs == [view.name]
    assert "NOT AS DERIVED: 1 missing" in warned[0]
    assert any("missing" in line and "size=1" in line for line in warned)
    assert [report.verdict for report in last_reports(flow_world.cluster, app.name)] == ["different"]


def test_spark_shares_its_cores_between_flows_and_proofs() -> None:
    proving = Settings(verify=VerifySettings(every_s=60))
    assert spark_conf(proving, "shop", [], Path("/spill"))["spark.scheduler.mode"] == "FAIR"
    assert "spark.scheduler.mode" not in spark_conf(Settings(), "shop", [], Path("/spill"))
