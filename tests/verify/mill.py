"""An app with a flow of each kind, and random readings for it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App

__all__ = ["LATE", "Measurement", "Mill", "Sensor", "readings"]

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATE = timedelta(seconds=20)


@dataclass(frozen=True)
class Measurement:
    reading_id: str
    sensor: str
    amount: int
    weight: float
    at: datetime
    tags: list[str]


@dataclass(frozen=True)
class Sensor:
    sensor: str
    name: str
    factor: Decimal


class Mill:
    """``doubled`` creates another version of one function, under the same name."""

    def __init__(self, mark: str, *, doubled: bool = False) -> None:
        self.app = app = App(f"mill-{mark}")
        self.sensors = app.table(f"sensors-{mark}", Sensor, key="sensor")
        self.readings = app.topic(
            f"readings-{mark}", Measurement, key="reading_id", time="at", late=LATE, partitions=2
        )
        self.scaled = app.topic(f"scaled-{mark}", key="reading_id")
        self.totals = app.topic(f"totals-{mark}", key=["sensor", "minute"])
        self.newest = app.topic(f"newest-{mark}", key="sensor")

        @app.flow(reads=[self.readings, self.sensors], writes=self.scaled, name=f"scale-{mark}")
        def scale(readings: DataFrame, sensors: DataFrame) -> DataFrame:
            """One row for each reading, with the factor at that time."""
            joined = readings.join(sensors, "sensor", "left")
            amount = (F.col("amount") * F.col("factor")).cast("decimal(20,6)")
            return joined.select("reading_id", "sensor", "name", amount.alias("amount"), "tags")

        @app.flow(reads=[self.readings], writes=self.totals, name=f"total-{mark}")
        def total(readings: DataFrame) -> DataFrame:
            """Sums by minute; also of floats, whose last digit depends on the order."""
            minutes = readings.groupBy("sensor", F.window("at", "1 minute").alias("window"))
            summed = minutes.agg(
                F.sum(F.col("amount") * (2 if doubled else 1)).alias("amount"),
                F.sum("weight").alias("weight"),
                F.count(F.lit(1)).alias("readings"),
            )
            return summed.select(
                "sensor", F.col("window.start").alias("minute"), "amount", "weight", "readings"
            )

        @app.flow(reads=[self.readings], writes=self.newest, name=f"follow-{mark}")
        def follow(readings: DataFrame) -> DataFrame:
            """Many rows for each key, of which the last one counts; some rows delete the key."""
            gone = F.col("amount") % 10 == 0
            return readings.select("sensor", "reading_id", "amount", gone.alias("_deleted"))

        self.scale, self.total, self.follow = scale, total, follow
        self.views = {
            name: app.view(f"{name}-{mark}", topic)
            for name, topic in (
                ("sensors", self.sensors),
                ("scaled", self.scaled),
                ("totals", self.totals),
                ("newest", self.newest),
            )
        }
        # A view with another key than the topic: the last written row of each sensor.
        self.views["lately"] = app.view(f"lately-{mark}", self.scaled, key="sensor")


def readings(seed: int, count: int, *, begin_s: int = 0, dead: int = 4) -> list[Any]:
    """Readings one second apart, out of order. One in ten is repeated, one in twenty is very late, some are invalid."""
    choose = random.Random(seed)
    sent: list[Any] = []
    for number in range(count):
        at = BEGIN + timedelta(seconds=begin_s + number + choose.uniform(-8, 8))
        if choose.random() < 0.05:
            at -= timedelta(hours=2)
        sent.append(
            Measurement(
                f"{begin_s}-{number}",
                f"s{choose.randrange(7)}",
                choose.randrange(1, 40),
                choose.uniform(0, 1),
                at,
                [f"t{choose.randrange(3)}", 'a "b"'][: choose.randrange(3)],
            )
        )
        if choose.random() < 0.1:
            sent.append(choose.choice(sent[-10:]))
    for number in range(dead):
        bad = choose.choice([b"{", b'{"reading_id":1}', b"\xff", None])
        sent.insert(choose.randrange(len(sent)), (b"dead-%d" % number, bad))
    return sent
