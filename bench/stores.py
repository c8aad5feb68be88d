"""How fast a follower fills each store, beside that store's own bulk load of the same rows into the same table.

They take turns, each with an empty store, and figures are medians. It counts only if all have stored as many rows.
What a follower does for it: batches of at most ``views.max_rows`` rows, each a transaction with its position, in which
rows replace those of the same key. The bulk load is one statement, and knows that there are none. A follower is
measured twice: with rows that are there already, as they are for the bulk load, and from the log, where each row is a
record that is fetched, read as JSON and held against its schema.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.orders import produce
from bench.sold import Sold, fill, records, some_rows
from bench.stand import Stand
from bench.store_cases import CASES, VIEW, StoreCase
from headrace import App
from headrace.client.cluster import Cluster
from headrace.runtime.part import Part as RunningPart
from headrace.views.follower import Follower
from headrace.views.rows import Row

__all__ = ["measure", "spent_s"]

_GOAL = 0.5
_TOPIC = "sold"
_FOLLOWED_S = 600.0
_LOOK_S = 0.005


def measure(stand: Stand) -> None:
    rows = some_rows(stand.plan.store_rows)
    produce(stand.cluster, _TOPIC, records(rows), stand.plan.partitions)
    for name, case in CASES.items():
        for _ in range(stand.plan.rounds):
            rates = {}
            for who in ("load", "fill", "follow"):
                with tempfile.TemporaryDirectory(
                    prefix="headrace-bench-", ignore_cleanup_errors=True
                ) as home:
                    rates[who] = len(rows) / spent_s(case, who, rows, Path(home), stand.cluster)
            for who, what in (("fill", "rows at hand"), ("follow", "from the log")):
                row = f"follower into {name}, {what}"
                stand.measured.both(row, case.peer, rates[who], rates["load"], "rows/s", _GOAL)


def spent_s(case: type[StoreCase], who: str, rows: Sequence[Row], home: Path, cluster: Cluster) -> float:
    with contextlib.closing(case(home)) as place:
        if who == "load":
            place.prepare()
            began = time.perf_counter()
            place.load(rows)
            spent = time.perf_counter() - began
        elif who == "fill":
            with contextlib.closing(place.open()) as store:
                began = time.perf_counter()
                fill(store, rows)
                spent = time.perf_counter() - began
        else:
            spent = _follow(cluster, place, len(rows))
        if (stored := place.count()) != len(rows):
            raise SystemExit(f"{case.__name__}: {who} has stored {stored} of {len(rows)} rows")
        return spent


def _follow(cluster: Cluster, place: StoreCase, count: int) -> float:
    """Until the view serves and has all, in seconds."""
    app = App("bench-stores")
    view = app.view(VIEW, app.topic(_TOPIC, Sold, key="order_id"))
    follower = Follower(view, [], cluster, place.open)
    stopping = threading.Event()
    part = RunningPart("the follower", follower.run, stopping)
    began = time.perf_counter()
    deadline = time.monotonic() + _FOLLOWED_S
    part.start()
    try:
        while (status := follower.status).applied < count or status.state != "following":
            if part.error is not None or time.monotonic() > deadline:
                raise part.error or SystemExit(f"the follower has come to {status} of {count} rows")
            time.sleep(_LOOK_S)
        return time.perf_counter() - began
    finally:
        stopping.set()
        part.join(_FOLLOWED_S)
