"""Helpers for pages with the JavaScript client."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page

from faults.serve.http import Http
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.progress import wait_until_decided
from tests.remote.unreliable_network import Network

__all__ = ["QUEUE", "begin", "copied", "drain", "expect_equal", "expect_prices", "prices", "put", "wait_in"]

QUEUE = """async ([topic, key, from, to]) => {
  for (let price = from; price < to; price++) await offline.outbox.write(topic, { fruit_id: key, price });
  return (await offline.outbox.pending()).length;
}"""


def begin(page: Page, network: Network, token: str, name: str = "clerk", view: str = "") -> None:
    """Open the client in the page, with a copy of the view if one is named."""
    page.evaluate(
        "([url, name, token]) => window.begin(url, name, token)",
        [f"http://127.0.0.1:{network.port}", name, token],
    )
    if view:
        page.evaluate("async (view) => { window.copy = await offline.copy(view); }", view)


def wait_in(page: Page, condition: Any, what: str) -> None:
    """Poll while Playwright waits, because it delivers events of the page only during its own calls."""
    until(lambda: page.wait_for_timeout(20) or condition(), what, pause_s=0)


def drain(page: Page) -> None:
    page.evaluate("offline.retry()")
    page.evaluate("offline.outbox.drained()")


def copied(page: Page, view: str) -> list[dict[str, Any]]:
    result = page.evaluate(
        "async (view) => headrace.stringify((await (await offline.copy(view)).all()).rows)", view
    )
    return _sorted(json.loads(result))


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # The JavaScript client returns a price as a string if no double represents it exactly.
    comparable = [{**row, "price": float(row["price"])} for row in rows]
    return sorted(comparable, key=lambda row: str(row["fruit_id"]))


def expect_equal(page: Page, server: Http, view: str) -> None:
    wait_in(
        page,
        lambda: copied(page, view) == _sorted(server.rows(view, limit=1000)),
        "the copy to have the rows of the view",
    )
    assert page.evaluate("window.faults") == []


def prices(server: Http, topic: str, key: str) -> list[int]:
    """The prices of all records with that key, in order."""
    result: list[int] = []
    document = server.get(f"/v1/topics/{topic}/records", limit=1000).expect(200)
    while True:
        result += [
            int(record["value"]["price"])
            for record in document["records"]
            if record["key"] == key and record["value"]
        ]
        if document["at_end"]:
            return result
        document = server.get(document["next"]).expect(200)


def expect_prices(cluster: Cluster, server: Http, topic: str, key: str, expected: list[int]) -> None:
    """Compare all records with that key. The log confirms a transaction shortly before readers see its records."""
    wait_until_decided(cluster, topic)
    assert prices(server, topic, key) == expected


def put(server: Http, topic: str, key: str, price: int) -> None:
    server.post(f"/v1/topics/{topic}/records", {"value": {"fruit_id": key, "price": price}}).expect(200)
