"""The page around its sections: addresses, keys, colours, widths, tokens, and its requests."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.http.tokens import OPERATIONS
from headrace.serve.page.assets import PAGE_FILES
from headrace.serve.page.page import PAGE_CSP
from tests.browser.page_apps import open_at


def test_a_url_opens_its_section(screen: Page, small: Http) -> None:
    open_at(screen, small, "/flows/seen-flow/declared", "text=seen-flow")
    expect(screen.get_by_role("link", name="seen-in")).to_be_visible()
    expect(screen).to_have_title("declared – seen-flow – Flows – shop – Headrace")
    open_at(screen, small, "/nowhere/at-all", "text=No such section")


def test_every_section_replaces_the_text_that_says_that_the_page_is_loading(
    screen: Page, cluster: Cluster, tmp_path: Path
) -> None:
    with served(App("bare"), cluster, tmp_path) as http:
        open_at(screen, http)
        titles = screen.locator(".nav-link").evaluate_all("links => links.map((link) => link.dataset.test)")
        assert len(titles) == 8
        for title in titles:
            screen.click(f"[data-test={title}]")
            section = screen.locator(f"[data-test=section-{title.removeprefix('nav-')}]")
            expect(section.locator("h1, [data-test=empty]").first).to_be_visible()
            expect(section.get_by_text("Loading")).to_have_count(0)
            expect(screen.get_by_text("Headrace is loading")).to_have_count(0)


def test_the_page_preloads_exactly_the_scripts_that_it_imports(screen: Page, small: Http) -> None:
    open_at(screen, small)
    preloaded = screen.evaluate(
        "[...document.querySelectorAll('link[rel=modulepreload]')].map((element) => element.href)"
    )
    loaded = screen.evaluate("performance.getEntriesByType('resource').map((element) => element.name)")
    scripts = {address for address in loaded if address.endswith(".js") and not address.endswith("/theme.js")}
    assert sorted(scripts) == sorted(preloaded)


def test_the_page_is_usable_by_keyboard_alone(screen: Page, small: Http) -> None:
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


def test_colours_follow_the_system_until_a_theme_is_chosen(screen: Page, small: Http) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    screen.emulate_media(color_scheme="dark")
    open_at(screen, small)
    dark = screen.evaluate(background)
    screen.click("[data-test=theme]")
    light = screen.evaluate(background)
    assert dark != light
    screen.reload()
    screen.wait_for_selector("[data-test=app-name]")
    assert screen.evaluate(background) == light


@pytest.mark.parametrize(
    "path", ["/graph", "/graph?node=topic:seen-products", "/flows", "/flows/seen-flow", "/alerts"]
)
def test_no_section_is_wider_than_a_phone(path: str, screen: Page, small: Http) -> None:
    screen.set_viewport_size({"width": 380, "height": 800})
    open_at(screen, small, path, "[data-test=health][data-state]")
    screen.wait_for_selector("[data-test=nav-alerts]")
    assert screen.evaluate("document.documentElement.scrollWidth") <= 380
    assert screen.evaluate("document.body.scrollWidth") <= 380


def test_the_page_contacts_only_its_server_and_violates_no_policy(screen: Page, small: Http) -> None:
    urls: set[str] = set()
    screen.on("request", lambda request: urls.add(request.url))
    for path in ("/graph?node=flow:seen-flow", "/flows/seen-flow", "/alerts"):
        open_at(screen, small, path, "[data-test=health][data-state]")
        screen.wait_for_selector(".chart canvas, [data-test=changes]")
    assert {url for url in urls if not url.startswith(f"http://127.0.0.1:{small.port}/")} == set()


def test_the_policy_stops_a_script_that_writes_markup(screen: Page, small: Http) -> None:
    open_at(screen, small)
    write = (
        "try { document.body.innerHTML = '<b>x</b>'; return 'written' } catch (error) { return error.name }"
    )
    assert screen.evaluate(f"() => {{ {write} }}") == "TypeError"


def test_only_files_of_the_page_are_served(small: Http) -> None:
    reply = small.get("/")
    assert reply.headers["content-security-policy"] == PAGE_CSP
    assert small.get("/", headers={"If-None-Match": reply.headers["etag"]}).status == 304
    assert {name for name in PAGE_FILES if small.get(f"/page/{name}").body != PAGE_FILES[name].body} == set()
    for name in (
        "vendor/README.md",
        "index.html",
        "../page.py",
        "..%2Fpage.py",
        "",
        "/etc/passwd",
    ):
        assert small.get(f"/page/{name}").status == 404, name


def test_files_are_gzipped_for_clients_that_accept_it(small: Http) -> None:
    uncompressed = small.get("/page/vendor/uplot.js")
    gzipped = small.get("/page/vendor/uplot.js", headers={"Accept-Encoding": "br;q=1, gzip;q=0.8"})
    assert gzipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(gzipped.body) == uncompressed.body
    assert "Accept-Encoding" in gzipped.headers["vary"]
    assert gzipped.headers["etag"] != uncompressed.headers["etag"]
    conditional_headers = {"Accept-Encoding": "gzip", "If-None-Match": gzipped.headers["etag"]}
    assert small.get("/page/vendor/uplot.js", headers=conditional_headers).status == 304
    uncompressed_reply = small.get("/page/vendor/uplot.js", headers={"Accept-Encoding": "gzip;q=0.0, *"})
    assert ("content-encoding" in uncompressed_reply.headers, uncompressed_reply.body) == (
        False,
        uncompressed.body,
    )


def test_the_page_prompts_for_a_token_once(screen: Page, cluster: Cluster, tmp_path: Path) -> None:
    token = token_for(tmp_path, "watcher", OPERATIONS)
    with served(App("closed"), cluster, tmp_path) as http:
        open_at(screen, http, "/alerts", "[data-test=token]")
        expect(screen.locator("[data-test=token-form] pre")).to_contain_text(f"--scope {OPERATIONS}")
        screen.fill("[data-test=token]", "wrong")
        screen.keyboard.press("Enter")
        screen.wait_for_selector("text=unknown, revoked or expired")
        screen.fill("[data-test=token]", token)
        screen.keyboard.press("Enter")
        screen.wait_for_selector("[data-test=rules]")
        expect(screen.locator("dialog")).to_have_count(0)
        assert token not in screen.url
        screen.reload()
        screen.wait_for_selector("[data-test=rules]")


def test_the_page_reports_an_unreachable_server_and_keeps_its_content(
    screen: Page, cluster: Cluster, tmp_path: Path
) -> None:
    with served(App("gone"), cluster, tmp_path) as http:
        open_at(screen, http, "/alerts", "[data-test=rules]")
    screen.wait_for_selector("[data-test=lost]")
    expect(screen.locator("[data-test=health]")).to_contain_text("Last known")
    expect(screen.locator("[data-test=rules]")).to_be_visible()


def test_the_page_works_without_browser_storage(screen: Page, small: Http) -> None:
    screen.add_init_script(
        """for (const name of ["localStorage", "sessionStorage"])
          Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });"""
    )
    for path in ("/", "/topics", "/flows", "/sql"):
        open_at(screen, small, path, f"[data-test=section-{path[1:] or 'graph'}] :is(h1, svg, textarea)")
    expect(screen.locator("[data-test=lost]")).to_have_count(0)
