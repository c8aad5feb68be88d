"""Generates traffic for the bike rentals: customers take bikes and return them. Some events arrive up to five minutes
after they happened, and some are invalid.

headrace run examples.bikes:app --feed examples.bikes.traffic:feed
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from examples.bikes import Action, Rental, Station, rentals, stations
from headrace.client.records import read

__all__ = ["STATIONS", "City", "feed"]

STATIONS = [
    Station("s01", "Harbour Gate", "Old Town"),
    Station("s02", "Fish Market", "Old Town"),
    Station("s03", "Cathedral Square", "Old Town"),
    Station("s04", "Central Station North", "Station Quarter"),
    Station("s05", "Central Station South", "Station Quarter"),
    Station("s06", "City Library", "Station Quarter"),
    Station("s07", "University", "Hillside"),
    Station("s08", "Botanical Garden", "Hillside"),
    Station("s09", "Hospital", "Hillside"),
    Station("s10", "River Park", "Riverside"),
    Station("s11", "Swimming Pool", "Riverside"),
    Station("s12", "Stadium Gate", "Riverside"),
]
_BIKES = 90
_RENTALS_PER_S = 40
_STEP_S = 0.1


class City:
    """The bikes, and the station of each parked bike. Every bike begins with its delivery to a station."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._started = int(time.time())
        self._rentals = 0
        self.parked: dict[str, str] = {}
        """The station of each parked bike."""
        self.ridden: set[str] = set()

    def replay(self, events: Iterable[tuple[str, str, Action]]) -> None:
        """Continue where earlier traffic stopped. Each event is a bike, a station, and what happened there."""
        for bike, station, action in events:
            self.parked.pop(bike, None)
            self.ridden.discard(bike)
            if action is Action.TAKEN:
                self.ridden.add(bike)
            else:
                self.parked[bike] = station

    def deliver(self, at: datetime) -> Iterator[Rental]:
        """Bring the missing bikes to the stations."""
        for number in range(_BIKES):
            bike = f"b{number:02}"
            if bike not in self.parked and bike not in self.ridden:
                yield self._rental(bike, STATIONS[number % len(STATIONS)].station_id, Action.RETURNED, at)

    def rental(self, at: datetime) -> Rental:
        """A customer takes a random bike, or returns one. About a third of the bikes are ridden at a time."""
        if not self.parked or (self.ridden and self._random.random() < 1.5 * len(self.ridden) / _BIKES):
            bike = self._random.choice(sorted(self.ridden))
            # The first stations are more popular.
            number = min(self._random.randrange(len(STATIONS)), self._random.randrange(len(STATIONS)))
            return self._rental(bike, STATIONS[number].station_id, Action.RETURNED, at)
        bike = self._random.choice(sorted(self.parked))
        return self._rental(bike, self.parked[bike], Action.TAKEN, at)

    def delay(self) -> timedelta:
        """Return how long an event is under way: usually not at all, rarely minutes."""
        dice = self._random.random()
        if dice < 0.002:
            return timedelta(minutes=5)
        return timedelta(seconds=self._random.random() * 60) if dice < 0.1 else timedelta()

    def _rental(self, bike: str, station: str, action: Action, at: datetime) -> Rental:
        self.replay([(bike, station, action)])
        self._rentals += 1
        return Rental(f"r-{self._started}-{self._rentals}", bike, station, action, at)


def feed(cluster: Any, stop: threading.Event) -> None:
    """Write traffic until ``stop`` is set."""
    city = City()
    city.replay(_written(cluster))
    producer = cluster.producer({"linger.ms": 5})

    def put(topic: str, value: bytes, key: bytes) -> None:
        # Without a poll, acknowledged records would remain in the producer's queue.
        producer.produce(topic, value, key)
        producer.poll(0)

    for station in STATIONS:
        key, value = stations.encode(station)
        put(stations.name, value, key)
    producer.flush(10)
    for rental in city.deliver(datetime.now(UTC)):
        key, value = rentals.encode(rental)
        put(rentals.name, value, key)
    steps = 0
    while not stop.wait(_STEP_S):
        for _ in range(round(_RENTALS_PER_S * _STEP_S)):
            key, value = rentals.encode(city.rental(datetime.now(UTC) - city.delay()))
            put(rentals.name, value, key)
        steps += 1
        if steps % 100 == 0:
            put(rentals.name, b'{"rental_id": 12', b"nonsense")
    producer.flush(10)


def _written(cluster: Any) -> Iterator[tuple[str, str, Action]]:
    """Read what earlier traffic wrote."""
    ranges = {number: (0, end) for number, end in cluster.ends(rentals.name).items()}
    for record in read(cluster, rentals.name, ranges):
        if record.key() != b"nonsense":
            row = json.loads(record.value())
            yield row["bike_id"], row["station_id"], Action(row["action"])
