"""The graph shows the numbers of the server, redraws only changes, and is readable when large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from examples import bikes
from faults.serve.http import Http
from faults.serve.local_server import served
from faults.wait import until
from headrace.client.cluster import Cluster
from tests.browser.page_apps import LARGE_NODES, open_at

_NODES = "[...document.querySelectorAll('[data-test=node]')]"
_READABLE_PX = 9


def _ids(page: Page) -> set[str]:
    return set(page.evaluate(f"{_NODES}.map((element) => element.dataset.id)"))


def _fact(page: Page, name: str) -> str:
    return (
        page.locator("[data-test=graph-panel] dt", has_text=name)
        .locator("xpath=following-sibling::dd[1]")
        .inner_text()
    )


def test_every_node_of_the_graph_is_a_link_with_its_numbers(screen: Page, small: Http) -> None:
    open_at(screen, small, "/graph", "[data-test=node]")
    app = small.get("/v1/app").expect(200)
    assert _ids(screen) == {node["id"] for node in app["nodes"]}
    assert set(
        screen.evaluate(
            "[...document.querySelectorAll('[data-test=edge]')].map((element) => element.dataset.id)"
        )
    ) == {f"{edge['from']}>{edge['to']}" for edge in app["edges"]}
    # Without writes the numbers do not change.
    now = small.get("/v1/app/now").expect(200)
    screen.click("[data-id='topic:seen-products']")
    screen.wait_for_url("**/#/graph?node=topic%3Aseen-products")
    assert _fact(screen, "Records") == str(now["nodes"]["topic:seen-products"]["records"]) == "25"
    screen.focus("[data-id='view:seen-products-view']")
    screen.keyboard.press("Enter")
    expect(screen.locator("[data-test=graph-panel] h2")).to_have_text("seen-products-view")
    assert _fact(screen, "Unread") == "none"
    screen.click("[data-test=graph-open]")
    screen.wait_for_url("**/#/views/seen-products-view")


def test_only_nodes_that_cause_a_problem_are_coloured(screen: Page, small: Http) -> None:
    open_at(screen, small, "/graph", "[data-test=health][data-state]")
    document = small.get("/v1/app/now").expect(200)["nodes"]
    coloured_ids = screen.evaluate(
        f"{_NODES}.filter((element) => element.matches('.warn, .bad')).map((element) => element.dataset.id)"
    )
    assert set(coloured_ids) == {name for name, node in document.items() if node["cause"]}


def test_an_update_without_changes_redraws_nothing(screen: Page, small: Http) -> None:
    open_at(screen, small, "/graph", "[data-test=health][data-state]")
    screen.evaluate(
        """() => { window.changes = []; window.updates = 0; const observer = new MutationObserver((records) =>
          window.changes.push(...records.map((element) => element.target.nodeName))); const options = {subtree: true,
          childList: true, attributes: true, characterData: true};
          observer.observe(document.querySelector('[data-test=graph-canvas]'), options); const decode =
          TextDecoder.prototype.decode; TextDecoder.prototype.decode = function (...args) { window.updates += 1; return
          decode.apply(this, args); }; }"""
    )
    until(lambda: screen.evaluate("window.updates") >= 3, "three updates")
    assert screen.evaluate("window.changes") == []


def _boxes(page: Page) -> list[dict[str, Any]]:
    boxes: list[dict[str, Any]] = page.evaluate(
        f"""{_NODES}.map((element) => {{
          const box = element.querySelector('.card-box').getBoundingClientRect();
          return {{id: element.dataset.id, x: box.x, y: box.y, right: box.right, bottom: box.bottom,
                   text: element.querySelector('.card-name').getBoundingClientRect().height}};
        }})"""
    )
    return boxes


def test_three_hundred_nodes_open_as_groups(screen: Page, large: Http) -> None:
    open_at(screen, large, "/graph", "[data-test=node]")
    assert len(large.get("/v1/app").expect(200)["nodes"]) == LARGE_NODES
    groups = _ids(screen)
    assert groups
    assert all(group.startswith("group:") for group in groups)
    screen.click("[data-test=graph-fold]")
    screen.wait_for_selector("[data-id='view:mail-03-a']", state="attached")
    boxes = _boxes(screen)
    # A tenth of the nodes are sources; the page draws them on their topics, not as separate nodes.
    assert len(boxes) == LARGE_NODES * 9 // 10
    assert min(box["text"] for box in boxes) >= _READABLE_PX
    assert _overlapping(boxes) == []
    screen.click("[data-test=graph-fit]")
    canvas = screen.locator("[data-test=graph-canvas]").bounding_box()
    assert canvas is not None
    assert all(
        canvas["x"] <= box["x"]
        and box["right"] <= canvas["x"] + canvas["width"] + 1
        and canvas["y"] <= box["y"]
        and box["bottom"] <= canvas["y"] + canvas["height"] + 1
        for box in _boxes(screen)
    )
    screen.keyboard.press("/")
    screen.keyboard.type("mail-03-total")
    expect(screen.locator("[data-test=graph-count]")).to_have_text("3 of 270")
    assert _ids(screen) == {
        "topic:mail-03-clean",
        "flow:mail-03-total",
        "topic:mail-03-total",
        "view:mail-03-total",
    }


_LIVE = {"per_s": 123_456.0, "lag": {"records": 9_876_543, "bytes": 1, "seconds": 754.0}}


def test_a_graph_of_three_flows_fits_a_window_of_1400_pixels_and_no_texts_overlap(
    screen: Page, cluster: Cluster, tmp_path: Path
) -> None:
    screen.set_viewport_size({"width": 1400, "height": 900})
    with served(bikes.app, cluster, tmp_path) as http:
        now = http.get("/v1/app/now").expect(200)
        # Only readers have a lag.
        now["edges"] = {
            name: {**edge, **(_LIVE if not name.startswith("source:") else {})}
            for name, edge in now["edges"].items()
        }
        now["nodes"] = {name: {**node, **_LIVE, "per_s_in": 1.0} for name, node in now["nodes"].items()}
        live = json.dumps(now)
        screen.route("**/v1/app/now", lambda route: route.fulfill(body=live, content_type="application/json"))
        screen.route(
            "**/v1/app/now/**",
            lambda route: route.fulfill(body=f"data: {live}\n\n", content_type="text/event-stream"),
        )
        open_at(screen, http, "/graph", "[data-test=edge-lag]")
        canvas = screen.locator("[data-test=graph-canvas]").bounding_box()
        assert canvas is not None
        boxes = screen.evaluate(
            """[...document.querySelectorAll('.card-box, [data-test=edge-rate], [data-test=edge-lag]')].map(element => {
              const box = element.getBoundingClientRect();
              return {id: `${element.closest('[data-id]').dataset.id} ${element.getAttribute('class')}`,
                      x: box.x, y: box.y, right: box.right, bottom: box.bottom}; })"""
        )
        texts = screen.evaluate(
            """[...document.querySelectorAll('[data-test=node]')].flatMap((node) => {
              const card = node.querySelector('.card-box').getBoundingClientRect();
              return [...node.querySelectorAll('text')]
                .filter((text) => text.getBoundingClientRect().right > card.right)
                .map((text) => text.textContent); })"""
        )
        screen.goto("about:blank")
    assert len([box for box in boxes if "line-lag" in box["id"]]) >= 9
    right, bottom = canvas["x"] + canvas["width"], canvas["y"] + canvas["height"]
    assert [
        box["id"]
        for box in boxes
        if box["x"] < canvas["x"] or box["right"] > right or box["y"] < canvas["y"] or box["bottom"] > bottom
    ] == []
    assert _overlapping(boxes) == []
    assert texts == []


def _overlapping(boxes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (a["id"], b["id"])
        for index, a in enumerate(boxes)
        for b in boxes[:index]
        if a["x"] < b["right"] and b["x"] < a["right"] and a["y"] < b["bottom"] and b["y"] < a["bottom"]
    ]


def test_a_url_selects_a_node_of_a_large_graph(screen: Page, large: Http) -> None:
    open_at(screen, large, "/graph?node=flow:stock-29-clean", "[data-id='flow:stock-29-clean']")
    expect(screen.locator("[data-test=graph-panel] h2")).to_have_text("stock-29-clean")
    expect(screen.locator("[data-id='flow:stock-29-clean'] .card-box")).to_be_in_viewport()
    assert any(node_id.startswith("group:") for node_id in _ids(screen))
