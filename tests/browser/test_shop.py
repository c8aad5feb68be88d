"""The page of the running shop: graph, charts, dead letters, a view, a proof, and a flow that fails."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from faults.serve.chromium import any_trouble, complaints_of
from faults.wait import until
from tests.browser.shop_run import Shop, running_shop

WAIT_MS = 300_000
# The server samples once a second, so a card may show any of the last few samples.
CARDS_MATCH_HISTORY = """async () => {
  const { summary } = await import("/page/sections/graph/text.js");
  const lagOf = (sample) => ({ records: sample.lag_records, seconds: sample.lag_seconds });
  const flow = (sample) => ({ state: "running", ...sample, lag: lagOf(sample) });
  for (const [id, nodeOf] of [["topic:orders", (sample) => sample], ["flow:enrich_orders", flow]]) {
    const shown = document.querySelector(`[data-test=node][data-id="${id}"] [data-test=second]`).textContent;
    const { fields, samples } = await (await fetch(`/v1/app/history?node=${id}`)).json();
    const named = samples.slice(-30).map((values) => Object.fromEntries(fields.map((name, at) => [name, values[at]])));
    if (!named.some((sample) => summary(id.split(":")[0], nodeOf(sample)) === shown)) return false;
  }
  return document.querySelector("[data-id='topic:orders'] [data-test=second]").textContent.startsWith("0/s") === false;
}"""
DRAWN = "() => document.querySelector('.chart canvas')?.toDataURL() ?? ''"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running_shop(tmp_path_factory.mktemp("shop")) as running:
        yield running


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """An open page; errors on its console fail the test."""
    context = chromium.new_context()
    context.set_default_timeout(WAIT_MS)
    opened = context.new_page()
    complaints = complaints_of(opened, any_trouble)
    yield opened
    context.close()
    assert complaints == []


def test_every_section_opens_without_an_error(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/")
    links = page.locator("[data-test^=nav-]")
    expect(links.first).to_be_visible()
    sections = [str(element.get_attribute("data-test")).removeprefix("nav-") for element in links.all()]
    assert sections == ["graph", "flows", "topics", "groups", "dead", "views", "sql", "alerts"]
    for section in sections:
        page.click(f"[data-test=nav-{section}]")
        expect(page.locator(f"[data-test=section-{section}] :is(h1, textarea)").first).to_be_attached(
            timeout=WAIT_MS
        )
        expect(page.locator("[data-test=problem]")).to_have_count(0)


def test_the_graph_has_every_node_with_the_numbers_of_the_server(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/#/graph")
    page.wait_for_selector("[data-test=node]")
    app = shop.http.get("/v1/app").expect(200)
    nodes, edges = page.locator("[data-test=node]").all(), page.locator("[data-test=edge]").all()
    assert {node.get_attribute("data-id") for node in nodes} == {node["id"] for node in app["nodes"]}
    assert {edge.get_attribute("data-id") for edge in edges} == {
        f"{edge['from']}>{edge['to']}" for edge in app["edges"]
    }
    until(lambda: page.evaluate(CARDS_MATCH_HISTORY), "cards with the numbers of the history")


def test_a_chart_updates_by_itself(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/#/graph?node=topic:orders")
    expect(page.locator("[data-test=graph-panel]")).to_contain_text("orders")
    # Playwright's wait_for_function evaluates a string in the page, which the page's policy forbids.
    before = until(lambda: page.evaluate(DRAWN), "a drawn chart")
    until(lambda: page.evaluate(DRAWN) not in ("", before), "an updated chart")
    page.goto(f"{shop.address}/#/flows/enrich_orders")
    expect(page.locator(".chart", has_text="Throughput").locator("canvas")).to_be_visible(timeout=WAIT_MS)


def test_a_dead_letter_is_shown_with_its_reason_previewed_and_replayed(page: Page, shop: Shop) -> None:
    order_id = uuid.uuid4().hex
    producer = shop.cluster.producer()
    producer.produce("orders", key=order_id, value=f'{{"order_id": "{order_id}", "quantity": "many"}}')
    assert producer.flush(30) == 0
    letters = "/v1/dead/shop.enrich_orders.dead/letters"
    until(
        lambda: order_id in shop.http.get(letters, limit=100).body.decode(), "the letter", WAIT_MS / 1000, 0.2
    )
    page.goto(f"{shop.address}/#/dead")
    page.get_by_role("row", name="shop.enrich_orders.dead").click()
    matching_row = page.locator("main table tbody tr", has_text=order_id)
    row = page.locator(f"main table tbody tr[data-key='{matching_row.get_attribute('data-key')}']")
    row.locator("td").nth(3).click()
    letter = page.locator("[data-test=letter]")
    expect(letter).to_contain_text("quantity")
    expect(letter).to_contain_text("orders/0/")
    row.locator("[data-test=choose]").check()
    page.click("[data-test=replay-chosen]")
    preview = page.locator("[data-test=replay-preview]")
    expect(preview).to_contain_text("1 would be written to topic orders", timeout=WAIT_MS)
    expect(preview).to_contain_text("still does not match the current schema")
    page.click("[data-test=write]")
    expect(page.locator("[data-test=replay-result]")).to_contain_text(
        "1 was written to topic orders", timeout=WAIT_MS
    )
    page.click("[data-test=close]")
    expect(row.filter(has_text="written back")).to_have_count(1, timeout=WAIT_MS)


def test_a_view_is_filtered_by_product(page: Page, shop: Shop) -> None:
    row = until(lambda: shop.http.get("/v1/views/sales/rows", limit=1).expect(200)["rows"], "a sale")[0]
    page.goto(f"{shop.address}/#/views/sales")
    page.fill("[data-test=filter]", f'order_id = "{row["order_id"]}"')
    page.press("[data-test=filter]", "Enter")
    expect(page.locator("[data-test=page-line]")).to_have_text("1 row, complete", timeout=WAIT_MS)
    expect(page.locator("[data-test=rows] tbody tr[data-key]")).to_contain_text(row["customer_id"])


def test_the_verify_button_proves_a_view_of_a_flow(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/#/views/ranking/verify")
    page.click("[data-test=verify]")
    verdict = page.locator("[data-test=verdict]")
    expect(verdict).to_have_text(re.compile("^Proven: "), timeout=2 * WAIT_MS)
    assert shop.http.get("/v1/views/ranking/verify").expect(200)["last"]["verdict"] == "proven"


def test_a_failed_flow_is_shown_with_the_next_step(page: Page, shop: Shop) -> None:
    """Deleting its input topic ends the flow. No other test uses clicks."""
    page.goto(f"{shop.address}/#/graph")
    page.wait_for_selector("[data-test=node]")
    shop.cluster.wait_for(shop.cluster.admin().delete_topics(["clicks"])["clicks"])
    health = page.locator("[data-test=health]")
    expect(health).to_have_attribute("data-state", "bad", timeout=WAIT_MS)
    expect(health).to_contain_text("Flow count_clicks needs records that were deleted from the log")
    expect(health).to_contain_text("flow rebuild")
    expect(page.locator("[data-test=node][data-id='flow:count_clicks']")).to_have_class(
        re.compile(r"\bbad\b")
    )
    expect(page.locator("[data-test=nav-flows]")).to_contain_text("1")
    page.click("[data-test=health-link]")
    expect(page.locator("main h1")).to_contain_text("count_clicks")
    expect(page.locator("[data-test=flow-error]")).to_contain_text("flow rebuild", timeout=WAIT_MS)
    expect(page.locator("[data-test=flow-error]")).to_contain_text("examples/shop/__init__.py:")
