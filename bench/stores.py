"""How fast a follower fills each store, beside that store's own bulk load of the same rows into the same table.

    python -m bench.stores [--only STORE ...] [--rows N] [--rounds N] [--results DIR]

Both take turns, each with an empty store; who begins alternates, and figures are medians. It counts only if both have
stored the same. What a follower does for it: batches of at most ``views.max_rows`` rows, each a transaction with its
position, in which rows replace those of the same key. The bulk load is one statement, and knows that there are none.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.machine import write_machine
from bench.report import RESULTS, write_results
from bench.store_cases import CASES, SHAPE, StoreCase
from headrace.views.changes import Changes
from headrace.views.position import NO_BATCH, Position
from headrace.views.rows import Row
from headrace.views.store import Fence, Part, Store

__all__ = ["fill", "main", "some_rows"]

_AT_ONCE = 10_000
_GOAL = 0.5


def some_rows(count: int) -> list[Row]:
    rng = random.Random(count)
    return [
        (
            f"order-{number:09}",
            f"customer {rng.randrange(10**6)} of a small town",
            rng.randrange(10**9),
            rng.random(),
            f"2026-01-31T12:{number // 60 % 60:02}:{number % 60:02}.123456Z",
            f"{rng.randrange(10**6)}.{number % 10**6:06}",
            number % 3 == 0,
            None,
        )
        for number in range(count)
    ]


def fill(store: Store, rows: Sequence[Row]) -> None:
    """As a follower builds a view: batch by batch, and then it serves."""
    fence = Fence(store.take("bench", 1), 1)

    def at(batch: int) -> Position:
        return Position("orders", "an id", {0: batch * _AT_ONCE}, 1, batch, "progress")

    store.begin(SHAPE, at(NO_BATCH), "a measurement", fence)
    for batch, first in enumerate(range(0, len(rows), _AT_ONCE)):
        changes = Changes(SHAPE)
        for row in rows[first : first + _AT_ONCE]:
            changes.put(row)
        store.apply(Part.BUILDING, changes, at(batch - 1), at(batch), fence)
    store.swap(fence)


def _measure(case: type[StoreCase], who: str, rows: Sequence[Row], home: Path) -> tuple[float, int]:
    """Seconds, and how many rows there are then."""
    with contextlib.closing(case(home)) as place:
        if who == "us":
            with contextlib.closing(place.open()) as store:
                began = time.perf_counter()
                fill(store, rows)
                spent = time.perf_counter() - began
        else:
            place.prepare()
            began = time.perf_counter()
            place.load(rows)
            spent = time.perf_counter() - began
        return spent, place.count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", metavar="STORE", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows, results = some_rows(options.rows), []
    for name in options.only:
        case = CASES[name]
        rates: dict[str, list[float]] = {"us": [], "them": []}
        for number in range(options.rounds):
            for who in ("us", "them") if number % 2 else ("them", "us"):
                with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                    spent, stored = _measure(case, who, rows, Path(folder))
                if stored != len(rows):
                    raise SystemExit(f"{name}: {who} stored {stored} of {len(rows)} rows")
                rates[who].append(len(rows) / spent)
                print(
                    f"  {name}: {who} {rates[who][-1]:,.0f} rows/s, load {os.getloadavg()[0]:.1f}", flush=True
                )
        row = {"name": f"follower into {name}", "peer": case.peer, "unit": "rows/s", "goal": _GOAL}
        results.append({**row, **rates})
    print(f"{len(results)} rows in {write_results('stores', results, options.results)}")
    write_machine(options.results)


if __name__ == "__main__":
    main()
