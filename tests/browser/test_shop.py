"""The page over the shop at work: the graph, charts, dead letters, a view, a proof, and a flow that was killed."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.complaints import any_trouble, complaints_of
from tests.browser.shop_house import Shop, running_shop
from tests.support.waiting import until

WAIT_MS = 300_000
# The page is told of each second, and so is the history: what a card says is what one of its samples has.
AS_TOLD = """async () => {
  const { summary } = await import("/page/sections/graph/words.js");
  const flow = (one) => ({ state: "running", ...one, lag: { records: one.lag_records, seconds: one.lag_seconds } });
  for (const [id, made] of [["topic:orders", (one) => one], ["flow:enrich_orders", flow]]) {
    const shown = document.querySelector(`[data-test=node][data-id="${id}"] [data-test=second]`).textContent;
    const { fields, samples } = await (await fetch(`/v1/app/history?node=${id}`)).json();
    const named = samples.slice(-30).map((one) => Object.fromEntries(fields.map((name, at) => [name, one[at]])));
    const told = named.map((one) => summary(id.split(":")[0], made(one)));
    if (!told.includes(shown)) return false;
  }
  return document.querySelector("[data-id='topic:orders'] [data-test=second]").textContent.startsWith("0/s") === false;
}"""
DRAWN = "() => document.querySelector('.chart canvas')?.toDataURL() ?? ''"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with running_shop(tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """Without a word of complaint on its console."""
    context = chromium.new_context()
    context.set_default_timeout(WAIT_MS)
    made = context.new_page()
    faults = complaints_of(made, any_trouble)
    yield made
    context.close()
    assert faults == []


def test_every_section_opens_without_a_complaint(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/")
    links = page.locator("[data-test^=nav-]")
    expect(links.first).to_be_visible()
    sections = [str(one.get_attribute("data-test")).removeprefix("nav-") for one in links.all()]
    assert sections == ["graph", "flows", "topics", "groups", "dead", "views", "sql", "alerts"]
    for section in sections:
        page.click(f"[data-test=nav-{section}]")
        expect(page.locator(f"[data-test=section-{section}] :is(h1, textarea)").first).to_be_attached(
            timeout=WAIT_MS
        )
        expect(page.locator("[data-test=problem]")).to_have_count(0)


def test_the_graph_has_every_part_and_the_numbers_that_the_server_tells(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/#/graph")
    page.wait_for_selector("[data-test=node]")
    told = shop.http.get("/v1/app").expect(200)
    nodes, edges = page.locator("[data-test=node]").all(), page.locator("[data-test=edge]").all()
    assert {one.get_attribute("data-id") for one in nodes} == {one["id"] for one in told["nodes"]}
    assert {one.get_attribute("data-id") for one in edges} == {
        f"{one['from']}>{one['to']}" for one in told["edges"]
    }
    until(lambda: page.evaluate(AS_TOLD), "cards to say what is told")


def test_a_chart_goes_on_by_itself(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/#/graph?node=topic:orders")
    expect(page.locator("[data-test=graph-panel]")).to_contain_text("orders")
    page.wait_for_function(f"({DRAWN})() !== ''")
    before = page.evaluate(DRAWN)
    page.wait_for_function(f"(before) => ({DRAWN})() !== before", arg=before)
    page.goto(f"{shop.address}/#/flows/enrich_orders")
    expect(page.locator(".chart", has_text="Throughput").locator("canvas")).to_be_visible(timeout=WAIT_MS)


def test_a_bad_record_is_found_with_its_reason_and_written_back_after_a_look(page: Page, shop: Shop) -> None:
    mark = uuid.uuid4().hex
    producer = shop.cluster.producer()
    producer.produce("orders", key=mark, value=f'{{"order_id": "{mark}", "quantity": "many"}}')
    assert producer.flush(30) == 0
    letters = "/v1/dead/enrich_orders.dead/letters"
    until(lambda: mark in shop.http.get(letters, limit=100).body.decode(), "the letter", WAIT_MS / 1000, 0.2)
    page.goto(f"{shop.address}/#/dead")
    page.get_by_role("row", name="enrich_orders.dead").click()
    found = page.locator("main table tbody tr", has_text=mark)
    row = page.locator(f"main table tbody tr[data-key='{found.get_attribute('data-key')}']")
    row.locator("td").nth(3).click()
    letter = page.locator("[data-test=letter]")
    expect(letter).to_contain_text("quantity")
    expect(letter).to_contain_text("orders/0/")
    row.locator("[data-test=choose]").check()
    page.click("[data-test=replay-chosen]")
    would = page.locator("[data-test=would]")
    expect(would).to_contain_text("1 would be written to topic orders", timeout=WAIT_MS)
    expect(would).to_contain_text("does not fit the schema today either")
    page.click("[data-test=write]")
    expect(page.locator("[data-test=did]")).to_contain_text("1 was written to topic orders", timeout=WAIT_MS)
    page.click("[data-test=close]")
    expect(row.filter(has_text="written back")).to_have_count(1, timeout=WAIT_MS)


def test_a_view_is_searched_for_what_was_sold(page: Page, shop: Shop) -> None:
    row = until(lambda: shop.http.get("/v1/views/sales/rows", limit=1).expect(200)["rows"], "a sale")[0]
    page.goto(f"{shop.address}/#/views/sales")
    page.fill("[data-test=filter]", f'order_id = "{row["order_id"]}"')
    page.press("[data-test=filter]", "Enter")
    expect(page.locator("[data-test=page-line]")).to_have_text("1 row, and that is all", timeout=WAIT_MS)
    expect(page.locator("[data-test=rows] tbody tr[data-key]")).to_contain_text(row["customer_id"])


def test_a_view_of_a_flow_is_proven_by_a_button(page: Page, shop: Shop) -> None:
    page.goto(f"{shop.address}/#/views/ranking/verify")
    page.click("[data-test=verify]")
    verdict = page.locator("[data-test=verdict]")
    expect(verdict).to_have_text(re.compile("^Proven: "), timeout=2 * WAIT_MS)
    assert shop.http.get("/v1/views/ranking/verify").expect(200)["last"]["verdict"] == "proven"


def test_a_flow_that_was_killed_is_said_with_what_to_do(page: Page, shop: Shop) -> None:
    """By the loss of what it reads. No other test looks at clicks."""
    page.goto(f"{shop.address}/#/graph")
    page.wait_for_selector("[data-test=node]")
    shop.cluster.answer(shop.cluster.admin().delete_topics(["clicks"])["clicks"])
    health = page.locator("[data-test=health]")
    expect(health).to_have_attribute("data-state", "bad", timeout=WAIT_MS)
    expect(health).to_contain_text("Flow count_clicks needs records that are no longer in the log")
    expect(health).to_contain_text("flow rebuild")
    expect(page.locator("[data-test=node][data-id='flow:count_clicks']")).to_have_class(
        re.compile(r"\bbad\b")
    )
    expect(page.locator("[data-test=nav-flows]")).to_contain_text("1")
    page.click("[data-test=health-link]")
    expect(page.locator("main h1")).to_contain_text("count_clicks")
    expect(page.locator("[data-test=flow-error]")).to_contain_text("flow rebuild", timeout=WAIT_MS)
    expect(page.locator("[data-test=flow-error]")).to_contain_text("examples/shop/__init__.py:")
