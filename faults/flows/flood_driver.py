"""A driver of four flows in its own process, with the default heap of 1 GB. A test floods one of three flows; the
fourth must continue.

    python -m faults.flows.flood_driver BOOTSTRAP HOME [--without output-guard]

It runs until HOME has a file ``finish``, and exits with 0 if the flows have processed all input and none has failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.flows.driver import AppThreads
from faults.patch import patch
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.settings import Settings, SparkSettings

__all__ = ["ATTACKS", "PARTS", "app_of_floods", "main"]

ATTACKS = ("poison", "explode", "one-key")
PARTS = 100
"""How many rows the explode flow derives from each reading, and how many marks the join finds for the only spot."""


@dataclass(frozen=True)
class SensorValue:
    reading: int
    sensor: str


@dataclass(frozen=True)
class Note:
    note: int
    text: str


@dataclass(frozen=True)
class Visit:
    visit: int
    spot: str


@dataclass(frozen=True)
class Mark:
    mark: str
    spot: str


@dataclass(frozen=True)
class Tick:
    tick: int


def app_of_floods(name: str = "floods", attacks: Sequence[str] = ATTACKS) -> App:
    """Return an app with one flow per attack, and one flow that must continue. All names of topics and flows contain
    ``name``.
    """
    app = App(name)
    for attack in attacks:
        {"poison": _declare_keep, "explode": _declare_explode, "one-key": _declare_join}[attack](app)
    ticks = app.topic(f"ticks-{name}", Tick, key="tick")

    @app.flow(reads=[ticks], writes=app.topic(f"ticked-{name}", key="tick"), name=f"tick-{name}")
    def tick(ticks: Any) -> Any:
        return ticks

    return app


def _declare_keep(app: App) -> None:
    notes = app.topic(f"notes-{app.name}", Note, key="note")

    @app.flow(reads=[notes], writes=app.topic(f"kept-{app.name}", key="note"), name=f"keep-{app.name}")
    def keep(notes: Any) -> Any:
        return notes


def _declare_explode(app: App) -> None:
    readings = app.topic(f"readings-{app.name}", SensorValue, key="reading")
    parts = app.topic(f"parts-{app.name}", key="sensor")

    @app.flow(reads=[readings], writes=parts, name=f"explode-{app.name}")
    def explode(readings: Any) -> Any:
        from pyspark.sql import functions as F

        numbers = F.sequence(F.lit(0), F.lit(PARTS - 1))
        return readings.select("sensor", "reading", F.explode(numbers).alias("part"))


def _declare_join(app: App) -> None:
    visits = app.topic(f"visits-{app.name}", Visit, key="visit")
    marks = app.table(f"marks-{app.name}", Mark, key="mark")

    @app.flow(
        reads=[visits, marks], writes=app.topic(f"seen-{app.name}", key="spot"), name=f"look-{app.name}"
    )
    def join_marks(visits: Any, marks: Any) -> Any:
        return visits.join(marks, "spot").select("spot", "visit", "mark")


def _without_guard() -> None:
    """Transfer all rows of a batch to the driver at once, regardless of their number."""
    from headrace.flow.batch_rows import OutputGuard

    patch(OutputGuard, "allow", lambda self, bytes_per_task: None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("home", type=Path)
    parser.add_argument("--without", choices=["output-guard"])
    options = parser.parse_args(arguments)
    from headrace.flow.spark.session import start, stop

    if options.without:
        _without_guard()
    # -1 disables broadcast joins, so Spark shuffles by spot, and one task gets all visits of a spot.
    conf = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.streaming.pollingDelay": "100ms"}
    settings = Settings(data=options.home, spark=SparkSettings(conf=conf))
    spark = start(settings, "floods")
    try:
        threads = AppThreads(spark, Cluster(options.bootstrap), settings, app_of_floods())
        threads.start(follow=False)
        print("started", flush=True)
        while not (options.home / "finish").exists() and not threads.stopping.wait(0.2):
            pass
        threads.stop()
    finally:
        stop(spark)
    print(threads.failures[0] if threads.failures else "done", flush=True)
    return 1 if threads.failures else 0


if __name__ == "__main__":
    sys.exit(main())
