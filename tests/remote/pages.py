"""What tests do with a page that has the client, and hold it against."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page

from tests.remote.cutting import Network
from tests.serve.http import Http
from tests.support.waiting import until

__all__ = ["QUEUE", "begin", "copied", "drain", "expect_equal", "prices", "put", "wait_in"]

QUEUE = """async ([topic, key, from, to]) => {
  for (let price = from; price < to; price++) await offline.outbox.write(topic, { fruit_id: key, price });
  return (await offline.outbox.pending()).length;
}"""


def begin(page: Page, network: Network, token: str, name: str = "clerk", view: str = "") -> None:
    """With a copy of the view, if one is named."""
    page.evaluate(
        "([url, name, token]) => window.begin(url, name, token)",
        [f"http://127.0.0.1:{network.port}", name, token],
    )
    if view:
        page.evaluate("async (view) => { window.copy = await offline.copy(view); }", view)


def wait_in(page: Page, condition: Any, what: str) -> None:
    """The page's own events go on between two looks only."""
    until(lambda: page.wait_for_timeout(20) or condition(), what, pause_s=0)


def drain(page: Page) -> None:
    page.evaluate("offline.retry()")
    page.evaluate("offline.outbox.drained()")


def copied(page: Page, view: str) -> list[dict[str, Any]]:
    found = page.evaluate(
        "async (view) => headrace.stringify((await (await offline.copy(view)).all()).rows)", view
    )
    return _sorted(json.loads(found))


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # A page has a price that no double holds as text.
    same = [{**row, "price": float(row["price"])} for row in rows]
    return sorted(same, key=lambda row: str(row["fruit_id"]))


def expect_equal(page: Page, server: Http, view: str) -> None:
    wait_in(
        page,
        lambda: copied(page, view) == _sorted(server.rows(view, limit=1000)),
        "the copy to be the view",
    )
    assert page.evaluate("window.faults") == []


def prices(server: Http, topic: str, key: str) -> list[int]:
    """Of all records of the topic with that key, in their order."""
    found: list[int] = []
    told = server.get(f"/v1/topics/{topic}/records", limit=1000).expect(200)
    while True:
        found += [int(one["value"]["price"]) for one in told["records"] if one["key"] == key and one["value"]]
        if told["at_end"]:
            return found
        told = server.get(told["next"]).expect(200)


def put(server: Http, topic: str, key: str, price: int) -> None:
    server.post(f"/v1/topics/{topic}/records", {"value": {"fruit_id": key, "price": price}}).expect(200)
