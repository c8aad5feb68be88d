"""The page around its sections: addresses, keys, colours, widths, tokens, and whom it asks."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.page.page_files import PAGE_FILES
from headrace.serve.page.page_routes import PAGE_CSP
from headrace.serve.scope import OPERATIONS
from tests.browser.screens import open_at
from tests.serve.http import Http
from tests.serve.serving import served, token_for


def test_an_address_opens_what_it_names(screen: Page, small: Http) -> None:
    open_at(screen, small, "/flows/seen-flow/declared", "text=seen-flow")
    expect(screen.get_by_role("link", name="seen-in")).to_be_visible()
    assert screen.title() == "declared – seen-flow – Flows – shop – Headrace"
    open_at(screen, small, "/nowhere/at-all", "text=There is no such section")


def test_all_scripts_of_the_page_are_asked_for_at_once_and_none_that_it_does_not_load(
    screen: Page, small: Http
) -> None:
    open_at(screen, small)
    named = screen.evaluate(
        "[...document.querySelectorAll('link[rel=modulepreload]')].map((one) => one.href)"
    )
    loaded = screen.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    scripts = {one for one in loaded if one.endswith(".js") and not one.endswith("/theme.js")}
    assert sorted(scripts) == sorted(named)


def test_the_page_is_walked_by_keys_alone(screen: Page, small: Http) -> None:
    open_at(screen, small)
    screen.keyboard.press("g")
    screen.keyboard.press("f")
    row = screen.locator("tr[data-key=seen-flow]")
    row.focus()
    screen.keyboard.press("Enter")
    screen.wait_for_url("**/#/flows/seen-flow")
    screen.keyboard.press("?")
    expect(screen.locator("[data-test=help-table]")).to_be_visible()
    screen.keyboard.press("Escape")
    expect(screen.locator("dialog")).to_have_count(0)
    screen.keyboard.press("/")
    screen.keyboard.type("seen-prod")
    screen.keyboard.press("ArrowDown")
    screen.keyboard.press("ArrowUp")
    screen.keyboard.press("Enter")
    screen.wait_for_url("**/#/topics/seen-products")


def test_colours_are_those_of_the_system_until_others_are_chosen_and_then_stay(
    screen: Page, small: Http
) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    screen.emulate_media(color_scheme="dark")
    open_at(screen, small)
    dark = screen.evaluate(ground)
    screen.click("[data-test=theme]")
    light = screen.evaluate(ground)
    assert dark != light
    screen.reload()
    screen.wait_for_selector("[data-test=app-name]")
    assert screen.evaluate(ground) == light


@pytest.mark.parametrize(
    "place", ["/graph", "/graph?node=topic:seen-products", "/flows", "/flows/seen-flow", "/alerts"]
)
def test_nothing_is_wider_than_a_phone(place: str, screen: Page, small: Http) -> None:
    screen.set_viewport_size({"width": 380, "height": 800})
    open_at(screen, small, place, "[data-test=health][data-state]")
    screen.wait_for_selector("[data-test=nav-alerts]")
    assert screen.evaluate("document.documentElement.scrollWidth") <= 380
    assert screen.evaluate("document.body.scrollWidth") <= 380


def test_the_page_asks_nobody_but_its_server_and_its_policy_has_nothing_to_stop(
    screen: Page, small: Http
) -> None:
    asked: set[str] = set()
    screen.on("request", lambda request: asked.add(request.url))
    for place in ("/graph?node=flow:seen-flow", "/flows/seen-flow", "/alerts"):
        open_at(screen, small, place, "[data-test=health][data-state]")
        screen.wait_for_selector(".chart canvas, [data-test=changes]")
    assert {url for url in asked if not url.startswith(f"http://127.0.0.1:{small.port}/")} == set()


def test_a_script_that_would_write_markup_is_stopped(screen: Page, small: Http) -> None:
    open_at(screen, small)
    write = (
        "try { document.body.innerHTML = '<b>x</b>'; return 'written' } catch (error) { return error.name }"
    )
    assert screen.evaluate(f"() => {{ {write} }}") == "TypeError"


def test_what_is_served_of_the_page_is_its_files_and_nothing_else(small: Http) -> None:
    reply = small.get("/")
    assert reply.headers["content-security-policy"] == PAGE_CSP
    assert small.get("/", headers={"If-None-Match": reply.headers["etag"]}).status == 304
    assert {name for name in PAGE_FILES if small.get(f"/page/{name}").body != PAGE_FILES[name].body} == set()
    for name in (
        "vendor/README.md",
        "index.html",
        "../page_routes.py",
        "..%2Fpage_routes.py",
        "",
        "/etc/passwd",
    ):
        assert small.get(f"/page/{name}").status == 404, name


def test_the_files_of_the_page_are_packed_for_who_takes_it(small: Http) -> None:
    plain = small.get("/page/vendor/uplot.js")
    packed = small.get("/page/vendor/uplot.js", headers={"Accept-Encoding": "br;q=1, gzip;q=0.8"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert "Accept-Encoding" in packed.headers["vary"]
    assert packed.headers["etag"] != plain.headers["etag"]
    again = {"Accept-Encoding": "gzip", "If-None-Match": packed.headers["etag"]}
    assert small.get("/page/vendor/uplot.js", headers=again).status == 304
    refused = small.get("/page/vendor/uplot.js", headers={"Accept-Encoding": "gzip;q=0.0, *"})
    assert ("content-encoding" in refused.headers, refused.body) == (False, plain.body)


def test_a_server_that_wants_a_token_is_given_one_once(
    screen: Page, cluster: Cluster, tmp_path: Path
) -> None:
    token = token_for(tmp_path, "watcher", OPERATIONS)
    with served(App("closed"), cluster, tmp_path) as http:
        open_at(screen, http, "/alerts", "[data-test=token]")
        expect(screen.locator("[data-test=token-form] pre")).to_contain_text(f"--scope {OPERATIONS}")
        screen.fill("[data-test=token]", "wrong")
        screen.keyboard.press("Enter")
        screen.wait_for_selector("text=was not known")
        screen.fill("[data-test=token]", token)
        screen.keyboard.press("Enter")
        screen.wait_for_selector("[data-test=rules]")
        expect(screen.locator("dialog")).to_have_count(0)
        assert token not in screen.url
        screen.reload()
        screen.wait_for_selector("[data-test=rules]")


def test_a_server_that_is_gone_is_said_and_what_was_seen_stays(
    screen: Page, cluster: Cluster, tmp_path: Path
) -> None:
    with served(App("gone"), cluster, tmp_path) as http:
        open_at(screen, http, "/alerts", "[data-test=rules]")
    screen.wait_for_selector("[data-test=lost]")
    expect(screen.locator("[data-test=health]")).to_contain_text("Last heard")
    expect(screen.locator("[data-test=rules]")).to_be_visible()


def test_a_browser_that_keeps_nothing_shows_the_page_all_the_same(screen: Page, small: Http) -> None:
    screen.add_init_script(
        """for (const one of ["localStorage", "sessionStorage"])
          Object.defineProperty(window, one, { get() { throw new DOMException("no", "SecurityError"); } });"""
    )
    for place in ("/", "/topics", "/flows", "/sql"):
        open_at(screen, small, place, f"[data-test=section-{place[1:] or 'graph'}] :is(h1, svg, textarea)")
    expect(screen.locator("[data-test=lost]")).to_have_count(0)
