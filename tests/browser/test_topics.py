"""Topics, messages and groups on the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from playwright.sync_api import Page, expect

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.views.follower_thread import produce
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.records import read
from tests.browser.page_apps import open_at
from tests.serve.haystack import NEEDLE, write_haystack

Fresh = Callable[[str], str]
_MESSAGES = 100_000


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    app = shop("page-shop")
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    with served(app, cluster, tmp_path_factory.mktemp("page-topics")) as http:
        yield http


@pytest.fixture(scope="module")
def many(cluster: Cluster) -> str:
    write_haystack(cluster, "page-many", _MESSAGES, json.dumps(NEEDLE).encode())
    return "page-many"


@pytest.fixture(scope="module")
def bytes_topic(cluster: Cluster) -> str:
    cluster.ensure_topic("page-bytes", 1)
    produce(cluster, "page-bytes", [(b"text", b'{"b": 1}'), (b"\xfe\xff", b"\xff\x01 raw"), (b"gone", None)])
    consumer = cluster.consumer({"group.id": "page-reader"})
    consumer.commit(offsets=[TopicPartition("page-bytes", 0, 1)], asynchronous=False)
    consumer.close()
    return "page-bytes"


def test_an_expression_finds_a_message_among_100_000(screen: Page, console: Http, many: str) -> None:
    open_at(screen, console, f"/topics/{many}", "[data-test=where]")
    rows = screen.locator("table[aria-label=Messages] tbody tr[data-key]")
    expect(rows.first).to_be_visible()
    screen.fill("[data-test=where]", 'value.amount > 40 && value.note == "Grüße"')
    screen.click("[data-test=search]")
    progress = screen.locator("[data-test=search-progress][data-state=done]")
    expect(progress).to_contain_text("100,001 of 100,001, found 1", timeout=600_000)
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("needle")
    rows.first.click()
    expect(screen.locator("[data-test=record-value]")).to_contain_text('"note": "Grüße"')
    expect(screen.locator("[data-test=record-headers]")).to_contain_text("found")


def test_a_url_opens_its_search_and_its_message(screen: Page, console: Http, bytes_topic: str) -> None:
    path = f"/topics/{bytes_topic}/messages?where=size+%3E+6&order=oldest&record=0%3A1"
    open_at(screen, console, path, "[data-test=dialog]")
    expect(screen.locator("[data-test=record-value] [data-test=bytes]")).to_contain_text("ff 01 20 72 61 77")
    expect(screen.locator("[data-test=record-key] [data-test=bytes]")).to_contain_text("fe ff")
    screen.keyboard.press("Escape")
    expect(screen.locator("[data-test=where]")).to_have_value("size > 6")
    expect(screen.locator("[data-test=order]")).to_have_value("oldest")
    expect(screen.locator("table[aria-label=Messages] tbody tr[data-key]")).to_have_count(1)


def test_bytes_are_shown_in_hex_and_a_missing_value_as_null(
    screen: Page, console: Http, bytes_topic: str
) -> None:
    open_at(screen, console, f"/topics/{bytes_topic}", "tr[data-key='0:1']")
    expect(screen.locator("tr[data-key='0:1']")).to_contain_text("hex fe ff")
    expect(screen.locator("tr[data-key='0:2']")).to_contain_text("null")
    keys = screen.locator("table[aria-label=Messages] tbody tr[data-key]").evaluate_all(
        "rows => rows.map((row) => row.dataset.key)"
    )
    assert keys == ["0:2", "0:1", "0:0"]


def test_an_invalid_expression_shows_the_position_of_the_error(
    screen: Page, console: Http, bytes_topic: str
) -> None:
    open_at(screen, console, f"/topics/{bytes_topic}", "[data-test=where]")
    screen.fill("[data-test=where]", "value.b >")
    screen.keyboard.press("Enter")
    expect(screen.locator(".field-error")).to_contain_text("error in where at 1:10")


def test_matches_are_downloaded_and_a_filter_is_saved(screen: Page, console: Http, bytes_topic: str) -> None:
    open_at(screen, console, f"/topics/{bytes_topic}/messages?where=offset+%3C+2", "tr[data-key='0:1']")
    with screen.expect_download() as download:
        screen.click("[data-test=download]")
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert [line["offset"] for line in lines] == [1, 0]
    assert download.value.suggested_filename == f"{bytes_topic}.ndjson"
    screen.click("[data-test=filter-new]")
    screen.fill("[data-test=filter-name]", "the first two")
    screen.click("[data-test=filter-save]")
    open_at(screen, console, "/topics", "table[aria-label=Topics]")
    open_at(screen, console, f"/topics/{bytes_topic}", "[data-test=saved-filters]")
    screen.select_option("[data-test=saved-filters]", "the first two")
    expect(screen.locator("[data-test=where]")).to_have_value("offset < 2")
    expect(screen.locator("table[aria-label=Messages] tbody tr[data-key]")).to_have_count(2)


def test_the_page_writes_a_valid_message_and_rejects_one_that_violates_the_schema(
    screen: Page, console: Http
) -> None:
    open_at(screen, console, "/topics/page-shop-products", "[data-test=write]")
    screen.click("[data-test=write]")
    screen.fill("[data-test=write-value]", '{"product_id": "p1", "name": "n"}')
    screen.click("[data-test=write-now]")
    expect(screen.locator("[data-test=dialog] [data-test=problem]")).to_contain_text("price")
    screen.fill("[data-test=write-value]", '{"product_id": "p1", "name": "n", "price": 5}')
    screen.click("[data-test=write-now]")
    expect(screen.locator("[data-test=written]")).to_contain_text("partition 0 at offset 0")
    screen.keyboard.press("Escape")
    screen.click("[data-test=search]")
    expect(screen.locator("tr[data-key='0:0']")).to_contain_text("p1")


def test_a_number_is_written_with_all_its_digits(screen: Page, console: Http, cluster: Cluster) -> None:
    open_at(screen, console, "/topics/page-shop-orders", "[data-test=write]")
    before = cluster.ends("page-shop-orders")
    screen.click("[data-test=write]")
    screen.fill(
        "[data-test=write-value]", '{"order_id": "o1", "product_id": "p", "pieces": 1152921504606846977}'
    )
    screen.click("[data-test=write-now]")
    expect(screen.locator("[data-test=written]")).to_be_visible()
    ranges = {
        partition: (before[partition], end) for partition, end in cluster.ends("page-shop-orders").items()
    }
    (written,) = read(cluster, "page-shop-orders", ranges)
    assert b"1152921504606846977" in (written.value() or b"")


def test_internal_topics_are_shown_on_request(
    screen: Page, console: Http, cluster: Cluster, bytes_topic: str
) -> None:
    cluster.ensure_topic("__page_own", 1)
    open_at(screen, console, "/topics", f"tr[data-key={bytes_topic}]")
    screen.fill("[data-test=find]", "__page")
    expect(screen.locator("tr[data-key=__page_own]")).to_have_count(0)
    screen.check("[data-test=internal]")
    expect(screen.locator("tr[data-key=__page_own]")).to_be_visible()
    screen.fill("[data-test=find]", bytes_topic)
    screen.locator(f"tr[data-key={bytes_topic}]").focus()
    screen.keyboard.press("Enter")
    screen.wait_for_url(f"**/#/topics/{bytes_topic}")
    screen.click("[data-test=tab-partitions]")
    expect(screen.get_by_role("link", name="page-reader")).to_be_visible()
    screen.click("[data-test=tab-configs]")
    expect(screen.get_by_text("cleanup.policy", exact=True)).to_be_visible()


def test_a_group_is_moved_after_a_preview(
    screen: Page, console: Http, cluster: Cluster, fresh: Fresh, bytes_topic: str
) -> None:
    group = fresh("page-group")
    consumer = cluster.consumer({"group.id": group})
    consumer.commit(offsets=[TopicPartition(bytes_topic, 0, 3)], asynchronous=False)
    consumer.close()
    open_at(screen, console, "/groups", f"tr[data-key={group}]")
    screen.locator(f"tr[data-key={group}]").click()
    screen.click("[data-test=seek]")
    screen.select_option("[data-test=seek-to]", "offset")
    screen.fill("[data-test=seek-offset]", "-2")
    screen.click("[data-test=seek-preview]")
    row = screen.locator("[data-test=would-move] tbody tr[data-key]")
    expect(row).to_have_text(re.compile(rf"{bytes_topic}\s*0\s*3\s*1\s*-2"))
    assert console.get(f"/v1/log/groups/{group}").expect(200)["partitions"][0]["committed"] == 3
    screen.click("[data-test=seek-apply]")
    expect(screen.locator("[data-test=moved]")).to_be_visible()
    assert console.get(f"/v1/log/groups/{group}").expect(200)["partitions"][0]["committed"] == 1
    screen.keyboard.press("Escape")
    expect(screen.locator("[data-test=stat-unread]")).to_contain_text("2")


@pytest.mark.parametrize(
    "path", ["/topics", "/topics/page-bytes", "/topics/page-bytes/partitions", "/groups"]
)
def test_no_section_is_wider_than_a_phone(path: str, screen: Page, console: Http, bytes_topic: str) -> None:
    screen.set_viewport_size({"width": 380, "height": 800})
    open_at(screen, console, path, "table")
    assert screen.evaluate("document.documentElement.scrollWidth") <= 380
    assert screen.evaluate("document.body.scrollWidth") <= 380
