"""The graph says what the server tells, changes no more than that, and can be read when it is large."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.screens import LARGE_NODES, open_at
from tests.serve.http import Http
from tests.support.waiting import until

_NODES = "[...document.querySelectorAll('[data-test=node]')]"
_READABLE_PX = 9


def _ids(page: Page) -> set[str]:
    return set(page.evaluate(f"{_NODES}.map((one) => one.dataset.id)"))


def _fact(page: Page, name: str) -> str:
    return (
        page.locator("[data-test=graph-panel] dt", has_text=name)
        .locator("xpath=following-sibling::dd[1]")
        .inner_text()
    )


def test_every_part_of_the_app_is_a_link_that_tells_its_numbers(screen: Page, small: Http) -> None:
    open_at(screen, small, "/graph", "[data-test=node]")
    app = small.get("/v1/app").expect(200)
    assert _ids(screen) == {one["id"] for one in app["nodes"]}
    assert set(
        screen.evaluate("[...document.querySelectorAll('[data-test=edge]')].map((one) => one.dataset.id)")
    ) == {f"{one['from']}>{one['to']}" for one in app["edges"]}
    # Nobody writes, so that the numbers stand still.
    now = small.get("/v1/app/now").expect(200)
    screen.click("[data-id='topic:seen-products']")
    screen.wait_for_url("**/#/graph?node=topic%3Aseen-products")
    assert _fact(screen, "Records") == str(now["nodes"]["topic:seen-products"]["records"]) == "25"
    screen.focus("[data-id='view:seen-products-view']")
    screen.keyboard.press("Enter")
    expect(screen.locator("[data-test=graph-panel] h2")).to_have_text("seen-products-view")
    assert _fact(screen, "To read") == "nothing to read"
    screen.click("[data-test=graph-open]")
    screen.wait_for_url("**/#/views/seen-products-view")


def test_only_causes_are_coloured(screen: Page, small: Http) -> None:
    open_at(screen, small, "/graph", "[data-test=health][data-state]")
    told = small.get("/v1/app/now").expect(200)["nodes"]
    coloured = screen.evaluate(
        f"{_NODES}.filter((one) => one.matches('.warn, .bad')).map((one) => one.dataset.id)"
    )
    assert set(coloured) == {name for name, node in told.items() if node["cause"]}


def test_an_update_that_says_the_same_changes_nothing_that_is_drawn(screen: Page, small: Http) -> None:
    open_at(screen, small, "/graph", "[data-test=health][data-state]")
    screen.evaluate(
        """() => {
          window.changes = [];
          window.told = 0;
          const seen = new MutationObserver((all) => window.changes.push(...all.map((one) => one.target.nodeName)));
          const all = {subtree: true, childList: true, attributes: true, characterData: true};
          seen.observe(document.querySelector('[data-test=graph-canvas]'), all);
          const decode = TextDecoder.prototype.decode;
          TextDecoder.prototype.decode = function (...given) { window.told += 1; return decode.apply(this, given); };
        }"""
    )
    until(lambda: screen.evaluate("window.told") >= 3, "numbers to be told again")
    assert screen.evaluate("window.changes") == []


def _boxes(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(
        f"""{_NODES}.map((one) => {{
          const box = one.querySelector('.card-box').getBoundingClientRect();
          return {{id: one.dataset.id, x: box.x, y: box.y, right: box.right, bottom: box.bottom,
                   text: one.querySelector('.card-name').getBoundingClientRect().height}};
        }})"""
    )
    return found


def test_three_hundred_parts_open_as_groups_and_are_read_one_by_one(screen: Page, large: Http) -> None:
    open_at(screen, large, "/graph", "[data-test=node]")
    assert len(large.get("/v1/app").expect(200)["nodes"]) == LARGE_NODES
    groups = _ids(screen)
    assert groups
    assert all(one.startswith("group:") for one in groups)
    screen.click("[data-test=graph-fold]")
    screen.wait_for_selector("[data-id='view:mail-03-a']", state="attached")
    boxes = _boxes(screen)
    # Who writes from outside is told on the topic.
    assert len(boxes) == LARGE_NODES * 9 // 10
    assert min(one["text"] for one in boxes) >= _READABLE_PX
    overlapping = [
        (a["id"], b["id"])
        for at, a in enumerate(boxes)
        for b in boxes[:at]
        if a["x"] < b["right"] and b["x"] < a["right"] and a["y"] < b["bottom"] and b["y"] < a["bottom"]
    ]
    assert overlapping == []
    screen.click("[data-test=graph-fit]")
    room = screen.locator("[data-test=graph-canvas]").bounding_box()
    assert room is not None
    assert all(
        room["x"] <= one["x"]
        and one["right"] <= room["x"] + room["width"] + 1
        and room["y"] <= one["y"]
        and one["bottom"] <= room["y"] + room["height"] + 1
        for one in _boxes(screen)
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


def test_an_address_shows_its_part_out_of_three_hundred(screen: Page, large: Http) -> None:
    open_at(screen, large, "/graph?node=flow:stock-29-clean", "[data-id='flow:stock-29-clean']")
    expect(screen.locator("[data-test=graph-panel] h2")).to_have_text("stock-29-clean")
    expect(screen.locator("[data-id='flow:stock-29-clean'] .card-box")).to_be_in_viewport()
    assert any(one.startswith("group:") for one in _ids(screen))
