"""The story of the bike rentals: derive views, prove them, kill the process that derives them, and prove them again.

python -m examples.bikes.story
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from examples.bikes import Rental, app, bikes, rentals, stations
from examples.bikes.traffic import STATIONS, City
from examples.stage import Stage, on_stage
from headrace.client.progress import current
from headrace.flow.compile.compiler import compile_app
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import Verifier

__all__ = ["FIRST_AT", "Outcome", "play"]

FIRST_AT = datetime(2026, 3, 1, 7, tzinfo=UTC)
_APP = "examples.bikes:app"
_STEP = timedelta(seconds=2)
_PART = 600
"""Rentals in each of the three parts."""


@dataclass
class Outcome:
    """The results of the story, for its test."""

    written: list[Rental] = field(default_factory=list)
    batches_before_kill: int = 0
    exit_code: int = 0
    verdicts: list[str] = field(default_factory=list)


def play(stage: Stage) -> Outcome:
    outcome, city = Outcome(), City()
    stage.declare(app)
    stage.write(stations, STATIONS)

    stage.say("run: three flows and five views")
    with stage.running(app) as run:
        _write(stage, outcome, [*city.deliver(FIRST_AT), *_traffic(city, outcome)])
        stage.settle(run)
    _verify(stage, outcome, ["bikes"])

    stage.say("kill -9 of the process that runs the flows")
    _write(stage, outcome, list(_traffic(city, outcome)))
    _run_until_killed(stage, outcome)
    stage.say(f"  exit code {outcome.exit_code}")

    stage.say("run again: the flows continue where they were killed")
    _write(stage, outcome, list(_traffic(city, outcome)))
    with stage.running(app) as run:
        stage.settle(run)
    _verify(stage, outcome, [view.name for view in app.views])
    return outcome


def _traffic(city: City, outcome: Outcome) -> Iterator[Rental]:
    for number in range(_PART):
        at = FIRST_AT + (len(outcome.written) + number) * _STEP
        yield city.rental(at - city.delay())


def _write(stage: Stage, outcome: Outcome, events: list[Rental]) -> None:
    stage.write(rentals, events)
    outcome.written += events
    stage.say(f"  {len(outcome.written)} rentals written")


def _run_until_killed(stage: Stage, outcome: Outcome) -> None:
    """Run the flows in a process of their own. Kill it when it has committed a batch."""
    flow = app.writer_of(bikes)
    assert flow is not None

    def batches() -> int:
        progress = current(stage.cluster, flow.progress_topic)
        assert driver.poll() is None, driver.communicate()
        return progress.last.batch if progress is not None and progress.last is not None else -1

    driver = stage.start("flow", "run", _APP)
    try:
        outcome.batches_before_kill = batches()
        stage.wait(lambda: batches() > outcome.batches_before_kill, "a batch of the process")
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
    outcome.exit_code = driver.returncode


def _verify(stage: Stage, outcome: Outcome, names: list[str]) -> None:
    spark = stage.spark()
    with Verifier(spark, stage.cluster, app, stage.settings, *compile_app(spark, app)) as verifier:
        for view in app.views:
            if view.name in names:
                report: Report = verifier.view(view)
                outcome.verdicts.append(report.verdict)
                stage.say(f"  view {view.name}: {report.verdict}, {report.found_rows:,} rows")


if __name__ == "__main__":
    on_stage(play)
