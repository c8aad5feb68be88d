"""The app whose data directory is in ``data.tar.xz``. Do not change it: the directory has fingerprints of its flows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import App

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

app = App("bikes")


@dataclass(frozen=True)
class Ride:
    ride_id: str
    station_id: str
    price: Decimal
    at: datetime


@dataclass(frozen=True)
class Station:
    station_id: str
    name: str


rides = app.topic("rides", Ride, key="ride_id", time="at", late=timedelta(minutes=1))
stations = app.table("stations", Station, key="station_id")
named = app.topic("named", key="ride_id", time="at", late=timedelta(minutes=1))


@app.flow(reads=[rides, stations], writes=named)
def name_stations(rides: DataFrame, stations: DataFrame) -> DataFrame:
    return rides.join(stations, "station_id").select("ride_id", "name", "price", "at")


@app.flow(reads=[named], writes=app.topic("per-minute", key=["name", "minute"]))
def sum_per_minute(named: DataFrame) -> DataFrame:
    minutes = named.groupBy("name", F.window("at", "1 minute").alias("window"))
    summed = minutes.agg(F.sum("price").alias("price"), F.count(F.lit(1)).alias("rides"))
    return summed.select("name", F.col("window.start").alias("minute"), "price", "rides")


app.view("per-minute", sum_per_minute.writes)
app.view("rides", named)
app.view("stations", stations)


def ride(number: int, station: str = "a", *, minutes: float = 0) -> Ride:
    return Ride(f"r{number}", station, Decimal(number), NOON + timedelta(minutes=minutes))


STATIONS = [Station("a", "Alder"), Station("b", "Birch"), Station("c", "Cedar")]
BATCHES: list[list[Any]] = [
    [ride(1), ride(2, "b"), ride(3, minutes=0.5), ride(4, "no station")],
    # The second ride is late, the next record fits no schema, and the last one is valid.
    [ride(5, minutes=10), ride(6, minutes=-5), b'{"ride_id": "r7"}', ride(8, "b", minutes=10)],
    [ride(9, "c", minutes=11), ride(10, minutes=-60)],
]
LATE = ["r6", "r10"]
DEAD = [b'{"ride_id": "r7"}']
