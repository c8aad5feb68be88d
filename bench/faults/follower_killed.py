"""A follower that is killed (SIGKILL), again and again, at any moment: between and within its transactions, while it
builds a new generation, and between a dead letter and the position behind it.

Whoever reads the view at any moment must see the rows of the batch that its position names; at the end it is what the
log's batches come to, and every value that did not fit is among the dead letters. One may be there twice, none is lost.
"""

from __future__ import annotations

import random
import time

from bench.faults.follower_process import FollowerProcess
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.store_kinds import KINDS, kind_of
from bench.faults.view_watch import ViewWatch
from bench.faults.workplace import workplace
from bench.faults.x13_follower import Writing
from headrace.client.cluster import Cluster
from headrace.client.reading import read

__all__ = ["UNPROTECTED", "run"]

FAULT = "followers"
UNPROTECTED = {"together": r"rows differ", "dead letters first": r"^\d+ lost$"}
_KILLS = 4
_POINTS = ("inside", "applied", "applying")
_SLOW_MS = 5.0
_NAME = "sales"


def run(seed: int, *, protected: bool = True, without: str = "together", store: str = "") -> Outcome:
    """``store`` is one of ``store_kinds.KINDS``; without it, the seed says which."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    kind = store or kind_of(seed)
    with (
        workplace(FAULT, seed) as home,
        KINDS[kind].place(home) as place,
        BrokerProcess(home, forked=True) as broker,
    ):
        broker.start()
        writing = Writing(broker.bootstrap, rng)
        watch = ViewWatch(place, _NAME, writing.expected)

        def start() -> FollowerProcess:
            left_out = "" if protected else without
            return FollowerProcess(
                broker.bootstrap, kind, place.address, _NAME, slow_ms=_SLOW_MS, without=left_out
            )

        follower = start()
        try:
            # Without its protection it need not last as long: there are as many runs as it takes.
            for number in range(_KILLS if protected else _KILLS // 2):
                point = _POINTS[number % len(_POINTS)]
                follower.wait_for("applied", 0)
                if number == _KILLS // 2 and seed % 2:
                    writing.renew()
                follower.wait_for(point, follower.last(point) + rng.randint(1, 6))
                time.sleep(rng.uniform(0, 0.004))
                outcome.peak_rss_mb = max(outcome.peak_rss_mb, follower.rss_mb())
                follower.kill()
                outcome.hits += follower.is_within
                follower = start()
            writing.stop()
            watch.wait_for(*writing.at)
        finally:
            writing.stop()
            follower.kill()
            watch.close()
        outcome.problems += watch.problems + broker.traces()
        outcome.lost += len(_lost(broker.bootstrap, writing))
        broker.kill()
    return outcome


def _lost(bootstrap: str, writing: Writing) -> set[bytes]:
    """What did not fit and is not among the dead letters."""
    cluster, topic = Cluster(bootstrap), f"{_NAME}.dead"
    found: set[bytes | None] = set()
    if cluster.topic(topic) is not None:
        found = {one.value() for one in read(cluster, topic, {0: (0, cluster.ends(topic)[0])})}
    return {value for value in writing.poison if value not in found}
