"""A driver of four flows with the default heap of 1 GB, in a process of its own: three that can be flooded, one that
only has to go on.

    python -m bench.faults.flood_driver BOOTSTRAP HOME [--without guard]

It runs until there is a file ``finish`` in HOME, and ends with 0 if all input is derived and no flow has failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.faults.flow_driver import Parts
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.settings import Settings, SparkSettings

__all__ = ["ATTACKS", "PARTS", "app_of_floods", "main"]

ATTACKS = ("poison", "explode", "key")
PARTS = 100
"""Rows that a reading becomes, and marks of the one spot."""


@dataclass(frozen=True)
class Reading:
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
    """The flow that each attack is for, and one that only has to go on. The name of the app is in those of its topics
    and flows.
    """
    app = App(name)
    for attack in attacks:
        {"poison": _declare_keep, "explode": _declare_explode, "key": _declare_look}[attack](app)
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
    readings = app.topic(f"readings-{app.name}", Reading, key="reading")
    parts = app.topic(f"parts-{app.name}", key="sensor")

    @app.flow(reads=[readings], writes=parts, name=f"explode-{app.name}")
    def explode(readings: Any) -> Any:
        from pyspark.sql import functions as F

        numbers = F.sequence(F.lit(0), F.lit(PARTS - 1))
        return readings.select("sensor", "reading", F.explode(numbers).alias("part"))


def _declare_look(app: App) -> None:
    visits = app.topic(f"visits-{app.name}", Visit, key="visit")
    marks = app.table(f"marks-{app.name}", Mark, key="mark")

    @app.flow(
        reads=[visits, marks], writes=app.topic(f"seen-{app.name}", key="spot"), name=f"look-{app.name}"
    )
    def look(visits: Any, marks: Any) -> Any:
        return visits.join(marks, "spot").select("spot", "visit", "mark")


def _without_guard() -> None:
    """All rows of a batch come over at once, however many they are."""
    from headrace.flow.output_guard import OutputGuard

    OutputGuard.allow = lambda self, bytes_per_task: None  # type: ignore[method-assign]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("home", type=Path)
    parser.add_argument("--without", choices=["guard"])
    given = parser.parse_args(words)
    from headrace.flow.session import start, stop

    if given.without:
        _without_guard()
    # No table is small enough to be sent to all tasks: all visits of a spot are in one.
    conf = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.streaming.pollingDelay": "100ms"}
    settings = Settings(data=given.home, spark=SparkSettings(conf=conf))
    spark = start(settings, "floods")
    try:
        parts = Parts(spark, Cluster(given.bootstrap), settings, app_of_floods())
        parts.start(follow=False)
        print("started", flush=True)
        while not (given.home / "finish").exists() and not parts.ending.wait(0.2):
            pass
        parts.stop()
    finally:
        stop(spark)
    print(parts.ends[0] if parts.ends else "done", flush=True)
    return 1 if parts.ends else 0


if __name__ == "__main__":
    sys.exit(main())
