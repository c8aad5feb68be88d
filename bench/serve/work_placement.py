"""The cost of queries of stored and computed views, with and without a response cache.

Run it with ``python -m bench.serve.work_placement [ROWS]``.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import Product
from faults.servers.headrace_broker import start_headrace
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.follow.follower import Follower
from headrace.stores import OnRead
from headrace.stores.registry import open_writer

_QUERIES = 30
_RECORDS_PER_REQUEST = 1_000


def main(rows: int) -> None:
    app = App("shop")
    products = app.table("products", Product, key="product_id")
    app.view("kept", products)
    app.view("kept-cached", products, cached=100)
    app.view("on-read", products, store=OnRead(records_max=rows * 2))
    app.view("on-read-cached", products, store=OnRead(records_max=rows * 2), cached=100)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        log = start_headrace(home / "log")
        stack.callback(log.stop)
        cluster = Cluster(log.bootstrap)
        ensure_declared(cluster, products, products.name, 1)
        stop = threading.Event()
        for view in app.views:
            follower = Follower(view, [], cluster, lambda view=view: open_writer(view, "shop", home))  # type: ignore[misc]
            thread = threading.Thread(target=follower.run, args=(stop,))
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        http = stack.enter_context(served(app, cluster, home))
        token = ""
        for begin in range(0, rows, _RECORDS_PER_REQUEST):
            records = [
                {"value": _product(number)}
                for number in range(begin, min(rows, begin + _RECORDS_PER_REQUEST))
            ]
            token = http.post("/v1/topics/products/records", {"records": records}).expect(200)["token"]
        print(
            f"{rows} rows; median ms of {_QUERIES} queries: by key, by filters without an index, by one repeated filter"
        )
        for view in (*app.views, *app.computed):
            path = f"/v1/views/{view.name}/rows"
            http.get(path, after=token, wait="30s", limit=1).expect(200)
            by_key = [_ms(http, f"{path}/p{number:07}") for number in range(_QUERIES)]
            filtered = [
                _ms(http, path, filter=f"weight < {number / 10_000}", limit=10) for number in range(_QUERIES)
            ]
            repeated = [_ms(http, path, filter="weight < 0.5", limit=10) for _ in range(_QUERIES)]
            print(
                f"{view.name:15}",
                *(f"{statistics.median(times_ms):9.2f}" for times_ms in (by_key, filtered, repeated)),
            )


def _product(number: int) -> dict[str, Any]:
    return {
        "product_id": f"p{number:07}",
        "name": f"n{number % 97}",
        "price": number,
        "weight": 1 + number % 13,
    }


def _ms(http: Http, path: str, **query: Any) -> float:
    began = time.perf_counter()
    http.get(path, **query).expect(200)
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
