"""How fast a view is proven: records of its flow's input per second, derived again and compared.

    python -m bench.verify [RECORDS]

The app is the shop's: an enrichment from a table, and two aggregations behind it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from examples.shop import Category, Order, Product, app, orders, products
from headrace.ops.verify import verify_view
from headrace.runtime.run import Run
from headrace.settings import LogSettings, Settings

__all__ = ["verify_rates"]

RECORDS = 500_000
_PRODUCTS = 1_000
_VIEWS = ("sales", "revenue", "ranking")


def verify_rates(records: int = RECORDS, *, data: Path | None = None) -> list[dict[str, Any]]:
    """A row per view: records read, rows compared, seconds, and records per second."""
    with tempfile.TemporaryDirectory(prefix="headrace-verify-") as name:
        folder = data or Path(name)
        run = Run(app, Settings(data=folder, log=LogSettings(listen="127.0.0.1:0")), tell=lambda line: None)
        try:
            run.start()
            _fill(run, records)
            _settle(run)
            run.stop_flows()
            return [_rate(run, view) for view in _VIEWS]
        finally:
            run.close()


def _fill(run: Run, records: int) -> None:
    producer = run.cluster.producer({"linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    begin = datetime.now(UTC) - timedelta(minutes=30)
    for number in range(_PRODUCTS):
        product = Product(f"p{number}", f"product {number}", Category.BOOKS, Decimal(number) / 4)
        key, value = products.encode(product)
        producer.produce(products.name, value, key)
    producer.flush()
    for number in range(records):
        at = begin + timedelta(seconds=1_500 * number / records)
        order = Order(f"o{number}", f"c{number % 9_973}", f"p{number * 7 % _PRODUCTS}", 1 + number % 5, at)
        key, value = orders.encode(order)
        while True:
            try:
                producer.produce(orders.name, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _settle(run: Run) -> None:
    quiet = 0
    while quiet < 3:
        time.sleep(0.5)
        look = run.look()
        behind = sum(one.lag for one in look.flows) + sum(one.lag for one in look.views)
        done = all(one.batch is not None for one in look.flows if one.name != "count_clicks")
        quiet = quiet + 1 if done and behind == 0 else 0
        if run.failed:
            raise RuntimeError(f"{run.failed[0].name}: {run.failed[0].error}")


def _rate(run: Run, name: str) -> dict[str, Any]:
    view = next(one for one in app.views if one.name == name)
    report = verify_view(run.spark, run.cluster, app, view, run.settings, run.compiled, run.schemas)
    if not report.proven:
        raise RuntimeError("\n".join(report.lines()))
    return {
        "name": f"verify {name}",
        "records": report.records,
        "rows": report.found_rows,
        "seconds": report.seconds,
        "records_per_s": round(report.records_per_s),
    }


if __name__ == "__main__":
    for row in verify_rates(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS):
        print(json.dumps(row))
