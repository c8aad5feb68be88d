"""Views on the page: search, pages, live rows, verification; values are always text."""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.parse
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from faults.serve.http import Http
from headrace.app import App
from tests.browser.views_app import FRUITS, ORDERS, delete, open_section, put

ROW = "[data-test=rows] tbody tr[data-key]"
ALL_KEYS = """async () => {
  const box = document.querySelector("[data-test=rows] .table-box"), found = [];
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  for (let top = 0; top <= box.scrollHeight; top += 300) {
    box.scrollTop = top;
    await drawn();
    for (const row of box.querySelectorAll("tr[data-key]")) found[Number(row.dataset.at)] = row.dataset.key;
  }
  return found;
}"""
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def topic(views_app: App) -> str:
    return views_app.topics[0].name


def _keys(page: Page) -> list[str]:
    return [str(element.get_attribute("data-key")) for element in page.query_selector_all(ROW)]


def test_the_list_has_store_rows_lag_and_position_of_each_view(
    screen: Page, views_http: Http, topic: str
) -> None:
    token = put(views_http, topic, {"fruit_id": "listed", "price": 1})
    views_http.get(f"/v1/views/{FRUITS}/rows/listed", after=token, wait="20s").expect(200)
    open_section(screen, views_http, "views", "[data-test=views] tbody tr")
    row = screen.locator(f"[data-test=views] tr[data-key='{FRUITS}']")
    expect(row).to_contain_text("serving")
    expect(row).to_contain_text("SQLite")
    expect(row.locator("td").nth(2)).not_to_have_text("–")
    row.click()
    screen.wait_for_selector("[data-test=view]")
    assert screen.evaluate("location.hash") == f"#/views/{FRUITS}"


def test_a_view_is_filtered_and_sorted_and_its_link_shows_the_same(
    screen: Page, views_http: Http, topic: str
) -> None:
    fruits = [{"fruit_id": f"search-{n}", "price": n, "pieces": 10 - n} for n in range(6)]
    token = put(views_http, topic, *fruits)
    views_http.get(f"/v1/views/{FRUITS}/rows/search-5", after=token, wait="20s").expect(200)
    open_section(screen, views_http, f"views/{FRUITS}?prefix=search-", ROW)
    screen.fill("[data-test=filter]", "price >= 2 and pieces != 6")
    screen.press("[data-test=filter]", "Enter")
    expect(screen.locator("[data-test=page-line]")).to_have_text("3 rows, complete")
    screen.click("[data-sort=pieces]")
    expected_keys = ["search-5", "search-3", "search-2"]
    screen.wait_for_url(re.compile("sort=pieces"))
    expect(screen.locator(ROW).first).to_have_attribute("data-key", expected_keys[0])
    assert _keys(screen) == expected_keys
    screen.reload()
    screen.wait_for_selector(ROW)
    assert _keys(screen) == expected_keys

    screen.fill("[data-test=filter]", "price >")
    screen.press("[data-test=filter]", "Enter")
    expect(screen.locator("[data-test=problem]")).to_contain_text("HR-SERVE-FILTER")


def test_paging_to_the_end_shows_exactly_all_rows(screen: Page, views_http: Http, topic: str) -> None:
    expected_keys = [f"page-{n:03}" for n in range(450)]
    token = put(views_http, topic, *({"fruit_id": key, "price": 1} for key in expected_keys))
    views_http.get(f"/v1/views/{FRUITS}/rows/page-449", after=token, wait="20s").expect(200)
    open_section(screen, views_http, f"views/{FRUITS}?prefix=page-", ROW)
    line = screen.locator("[data-test=page-line]")
    expect(line).to_have_text("200 rows, more available")
    screen.click("[data-test=more]")
    expect(line).to_have_text("400 rows, more available")
    screen.click("[data-test=more]")
    expect(line).to_have_text("450 rows, complete")
    assert screen.query_selector("[data-test=more]") is None
    assert screen.evaluate(ALL_KEYS) == expected_keys
    # A subscription to all rows stops at its row limit.
    error_code = screen.evaluate(
        """async (view) => {
          const { Headrace } = await import("/client/headrace.js");
          const changes = new Headrace(location.origin).view(view).changes({ prefix: "page-", rowsMax: 449 });
          return changes.next().catch(({ code }) => code);
        }""",
        FRUITS,
    )
    assert error_code == "HR-BROWSER-COPY-SIZE"


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_live_change_is_marked_also_with_reduced_motion(
    chromium: Browser, views_http: Http, topic: str, motion: str
) -> None:
    keys = [f"live-{motion}-{n}" for n in range(3)]
    put(views_http, topic, *({"fruit_id": key, "price": 1} for key in keys))
    context = chromium.new_context(reduced_motion=motion)  # type: ignore[arg-type]
    context.set_default_timeout(120_000)
    page = context.new_page()
    open_section(page, views_http, f"views/{FRUITS}?prefix=live-{motion}-&sort=-price&live=1", ROW)
    expect(page.locator("[data-test=live-state]")).to_have_text("live")
    expect(page.locator(ROW)).to_have_count(3)
    position_before = page.inner_text("[data-test=live-position]")
    put(views_http, topic, {"fruit_id": keys[2], "price": 7})
    delete(views_http, topic, fruit_id=keys[0])
    changed = page.locator(f"tr[data-key='{keys[2]}'][class*=flash-]")
    expect(changed).to_contain_text("7")
    expect(page.locator(ROW)).to_have_count(2)
    assert _keys(page) == [keys[2], keys[1]]
    assert page.locator(f"tr[data-key='{keys[1]}'][class*=flash-]").count() == 0
    assert page.inner_text("[data-test=live-position]") != position_before
    animation = changed.evaluate("(row) => getComputedStyle(row).animationName")
    border = changed.locator("td").first.evaluate("(cell) => getComputedStyle(cell).boxShadow")
    assert (animation.startswith("flash"), "3px 0px" in border) == (motion != "reduce", motion == "reduce")
    context.close()


def test_a_proof_finds_a_row_that_was_changed_in_the_store(
    screen: Page, views_http: Http, views_app: App, views_home: Path
) -> None:
    orders = [{"order_id": f"o{n}", "fruit_id": "fig", "pieces": n} for n in range(5)]
    token = put(views_http, views_app.topics[1].name, *orders)
    views_http.get(f"/v1/views/{ORDERS}/rows", after=token, wait="20s").expect(200)
    open_section(screen, views_http, f"views/{ORDERS}/verify", "[data-test=unverified]")
    screen.click("[data-test=verify]")
    verdict = screen.locator("[data-test=verdict]")
    expect(verdict).to_have_text(re.compile("^Proven: "))
    expect(screen.locator("[data-test=report]")).to_contain_text("sha256 derived")
    expect(screen.locator("[data-test=stat-last-verified]")).to_contain_text("proven")

    with closing(sqlite3.connect(views_home / "shop.db", timeout=30, isolation_level=None)) as store:
        store.execute(f"UPDATE \"{ORDERS}\" SET pieces = 77 WHERE order_id = 'o3'")
    screen.click("[data-test=verify]")
    expect(verdict).to_have_text(re.compile("^NOT AS DERIVED: "))
    expect(screen.locator("[data-test=report]")).to_contain_text("pieces: 3 expected, 77 found")


def test_hostile_strings_in_rows_stay_text_and_odd_keys_have_links(
    screen: Page, views_http: Http, topic: str
) -> None:
    odd_keys = ["hostile-a/b?c#d%2F&e", f"hostile-{HOSTILE}"]
    values = [
        {"fruit_id": key, "price": 1, "names": [HOSTILE], "stock": {HOSTILE: 1}, "pieces": 2**60 + 1}
        for key in odd_keys
    ]
    token = put(views_http, topic, *values)
    path = f"/v1/views/{FRUITS}/rows/{urllib.parse.quote(odd_keys[1], safe='')}"
    views_http.get(path, after=token, wait="20s").expect(200)
    open_section(screen, views_http, f"views/{FRUITS}?prefix=hostile-", ROW)
    assert _keys(screen) == sorted(odd_keys)
    for key in odd_keys:
        screen.locator(f"tr[data-key={json.dumps(key)}] td").first.click()
        expect(screen.locator("[data-test=row] [data-column=fruit_id]")).to_have_text(key)
        screen.reload()
        row = screen.locator("[data-test=row]")
        expect(row.locator("[data-column=fruit_id]")).to_have_text(key)
        expect(row.locator("[data-column=names]")).to_contain_text("<script>")
        expect(row.locator("[data-column=pieces]")).to_have_text(str(2**60 + 1))
        screen.keyboard.press("Escape")
        expect(row).to_have_count(0)
    assert screen.evaluate("window.hacked ?? null") is None
    assert screen.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_typed_text_stays_when_live_is_switched_on(screen: Page, views_http: Http, topic: str) -> None:
    put(views_http, topic, {"fruit_id": "typed-1", "price": 1}, {"fruit_id": "typed-2", "price": 2})
    open_section(screen, views_http, f"views/{FRUITS}?prefix=typed-", ROW)
    screen.fill("[data-test=filter]", "price = 2")
    screen.click("[data-test=live]")
    expect(screen.locator("[data-test=live-state]")).to_have_text("live")
    expect(screen.locator(ROW)).to_have_count(1)
    assert screen.input_value("[data-test=filter]") == "price = 2"
