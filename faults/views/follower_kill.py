"""A follower is killed repeatedly with SIGKILL, at any time: between and inside its transactions, while it builds a new
generation, and between a dead letter and the position after it.

Every read of the view must show exactly the state after the batch at the view's position. At the end the view must
equal the rows that result from all batches in the log. Every invalid value must be a dead letter, possibly twice.
"""

from __future__ import annotations

import random
import time

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess
from faults.stores.registry import kind_of, store_faults
from faults.views.follower_process import FollowerProcess
from faults.views.view_reader import ViewReader
from faults.views.zombie_follower import BatchWriter
from headrace.client.cluster import Cluster
from headrace.client.records import read

__all__ = ["UNPROTECTED", "run"]

FAULT = "followers"
UNPROTECTED = {"atomic-commit": r"rows differ", "dead-letters-first": r"^\d+ lost$"}
_KILLS = 4
_POINTS = ("inside", "applied", "applying")
_SLOW_MS = 5.0
_NAME = "sales"


def run(seed: int, *, protected: bool = True, without: str = "atomic-commit", store: str = "") -> Outcome:
    """``store`` is one of ``KINDS``. By default the seed chooses it."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    kind = store or kind_of(seed)
    with (
        run_directory(FAULT, seed) as home,
        store_faults(kind).create(home) as faulty_store,
        BrokerProcess(home, forked=True) as broker,
    ):
        broker.start()
        writer = BatchWriter(broker.bootstrap, rng)
        reader = ViewReader(faulty_store, _NAME, writer.expected)

        def start() -> FollowerProcess:
            left_out = "" if protected else without
            return FollowerProcess(
                broker.bootstrap, kind, faulty_store.address, _NAME, slow_ms=_SLOW_MS, without=left_out
            )

        follower = start()
        try:
            # A run without a protection can be shorter, because the run is repeated until the problem is found.
            for number in range(_KILLS if protected else _KILLS // 2):
                point = _POINTS[number % len(_POINTS)]
                follower.wait_for("applied", 0)
                if number == _KILLS // 2 and seed % 2:
                    writer.renew()
                follower.wait_for(point, follower.last(point) + rng.randint(1, 6))
                time.sleep(rng.uniform(0, 0.004))
                outcome.peak_rss_mb = max(outcome.peak_rss_mb, follower.rss_mb())
                follower.kill()
                outcome.hits += follower.is_within
                follower = start()
            writer.stop()
            reader.wait_for(*writer.at)
        finally:
            writer.stop()
            follower.kill()
            reader.close()
        outcome.problems += reader.problems + broker.unexpected_exceptions()
        outcome.lost += len(_lost(broker.bootstrap, writer))
        broker.kill()
    return outcome


def _lost(bootstrap: str, writer: BatchWriter) -> set[bytes]:
    """Return the invalid values without a dead letter."""
    cluster, topic = Cluster(bootstrap), f"shop.{_NAME}.dead"
    dead_values: set[bytes | None] = set()
    if cluster.topic(topic) is not None:
        dead_values = {message.value() for message in read(cluster, topic, {0: (0, cluster.ends(topic)[0])})}
    return {value for value in writer.poison if value not in dead_values}
