"""Bike rentals: the bikes at each station, and the rides per station and five minutes.

stations   a table: the stations, with name and district
rentals    events: a customer took a bike at a station, or returned it

locate_rentals   rides: rentals, each with the station's name and district at the time when the flow read the rental
count_rides      activity: bikes rented and returned, per station and five minutes
count_bikes      bikes: the bikes that are at each station now

headrace run examples.bikes:app --feed examples.bikes.traffic:feed
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import App
from headrace.stores import Search, SQLite

app = App("bikes")


class Action(StrEnum):
    TAKEN = "taken"
    RETURNED = "returned"


@dataclass(frozen=True)
class Station:
    station_id: str
    name: str
    district: str


@dataclass(frozen=True)
class Rental:
    rental_id: str
    bike_id: str
    station_id: str
    action: Action
    at: datetime


LATE = timedelta(minutes=10)
stations = app.table("stations", Station, key="station_id")
rentals = app.topic("rentals", Rental, key="bike_id", time="at", late=LATE)

rides = app.topic("rides", key="rental_id", time="at", late=LATE)
activity = app.topic("activity", key=["station_id", "start"])
bikes = app.topic("bikes", key="station_id")


@app.flow(reads=[rentals, stations], writes=rides)
def locate_rentals(rentals: DataFrame, stations: DataFrame) -> DataFrame:
    """If a station is not in the table yet, its rentals have no name and no district."""
    known = stations.select("station_id", "name", "district")
    return rentals.join(known, "station_id", "left").select(
        "rental_id", "bike_id", "station_id", "name", "district", "action", "at"
    )


@app.flow(reads=[rides], writes=activity)
def count_rides(rides: DataFrame) -> DataFrame:
    windows = rides.groupBy("station_id", F.window("at", "5 minutes").alias("window"))
    counted = windows.agg(
        F.count_if(F.col("action") == Action.TAKEN).alias("taken"),
        F.count_if(F.col("action") == Action.RETURNED).alias("returned"),
    )
    return counted.select("station_id", F.col("window.start").alias("start"), "taken", "returned")


@app.flow(reads=[rides], writes=bikes, unbounded=True)
def count_bikes(rides: DataFrame) -> DataFrame:
    """A count without a time window, one row per station. So the state grows with the number of stations."""
    change = F.when(F.col("action") == Action.RETURNED, 1).otherwise(-1)
    return rides.groupBy("station_id").agg(
        F.max_by("name", "at").alias("name"),
        F.sum(change).alias("available"),
        F.max("at").alias("changed_at"),
    )


app.view("stations", stations, store=SQLite())
app.view("stations_found", stations, store=Search(fields=["name", "district"]))
app.view("rides", rides, store=SQLite())
app.view("activity", activity, store=SQLite())
app.view("bikes", bikes, store=SQLite())
