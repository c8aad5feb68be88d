"""How fast a follower fills each store, against that store's own bulk load of the same rows into the same table.

Follower and bulk load take turns, each with an empty store, and figures are medians. A round counts only if both stored
the same number of rows. The follower does more: it writes batches of at most ``views.max_rows`` rows, each batch in a
transaction with its position, and a row replaces the earlier row with its key. The bulk load is one statement into an
empty table. A follower is measured twice: with rows in memory, as for the bulk load, and from the log, where it fetches
each record, decodes its JSON and checks it against the schema.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.flow.context import FlowContext
from bench.flow.orders import produce
from bench.flow.sample_rows import SampleRow, fill, records, sample_rows
from bench.flow.store_cases import CASES, VIEW, StoreCase
from headrace import App
from headrace.client.cluster import Cluster
from headrace.follow.follower import Follower
from headrace.runtime.part import Part as RunningPart
from headrace.stores.rows import Row

__all__ = ["fill_s", "measure"]

_GOAL = 0.5
_TOPIC = "sold"
_FOLLOW_TIMEOUT_S = 600.0
_POLL_S = 0.005


def measure(context: FlowContext) -> None:
    rows = sample_rows(context.plan.store_rows)
    produce(context.cluster, _TOPIC, records(rows), context.plan.partitions)
    for name, case in CASES.items():
        for _ in range(context.plan.rounds):
            rates = {}
            for method in ("load", "fill", "follow"):
                with tempfile.TemporaryDirectory(
                    prefix="headrace-bench-", ignore_cleanup_errors=True
                ) as home:
                    rates[method] = len(rows) / fill_s(case, method, rows, Path(home), context.cluster)
            for method, source in (("fill", "rows from memory"), ("follow", "from the log")):
                row = f"follower into {name}, {source}"
                context.figures.add_comparison(row, case.peer, rates[method], rates["load"], "rows/s", _GOAL)


def fill_s(case: type[StoreCase], method: str, rows: Sequence[Row], home: Path, cluster: Cluster) -> float:
    with contextlib.closing(case(home)) as store_case:
        if method == "load":
            store_case.prepare()
            began = time.perf_counter()
            store_case.load(rows)
            seconds = time.perf_counter() - began
        elif method == "fill":
            with contextlib.closing(store_case.open()) as store:
                began = time.perf_counter()
                fill(store, rows)
                seconds = time.perf_counter() - began
        else:
            seconds = _follow(cluster, store_case, len(rows))
        if (stored := store_case.count()) != len(rows):
            raise SystemExit(f"{case.__name__}: {method} stored {stored} of {len(rows)} rows")
        return seconds


def _follow(cluster: Cluster, store_case: StoreCase, count: int) -> float:
    """Return the seconds until the view serves all rows."""
    app = App("bench-stores")
    view = app.view(VIEW, app.topic(_TOPIC, SampleRow, key="order_id"))
    follower = Follower(view, [], cluster, store_case.open)
    stopping = threading.Event()
    part = RunningPart("the follower", follower.run, stopping)
    began = time.perf_counter()
    deadline = time.monotonic() + _FOLLOW_TIMEOUT_S
    part.start()
    try:
        while (status := follower.status).applied < count or status.state != "following":
            if part.error is not None or time.monotonic() > deadline:
                raise part.error or SystemExit(f"the follower is at {status} of {count} rows")
            time.sleep(_POLL_S)
        return time.perf_counter() - began
    finally:
        stopping.set()
        part.join(_FOLLOW_TIMEOUT_S)
