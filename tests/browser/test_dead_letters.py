"""Dead letters on the page: read, previewed and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from faults.serve.local_server import served
from headrace import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_dead_letter_topic, ensure_declared
from headrace.client.records import read
from tests.browser.page_apps import open_at


@dataclass(frozen=True)
class _Order:
    order_id: str
    pieces: int


@pytest.fixture
def shop(cluster: Cluster, fresh: Callable[[str], str]) -> App:
    """An app with three dead letters: one can be written back and fits the schema, one can be written back but does not
    fit it, and one cannot be written back.
    """
    name = fresh("page")
    app = App(name)
    orders = app.topic(f"{name}-orders", _Order, key="order_id")
    view = app.view(f"{name}-view", orders)
    ensure_declared(cluster, orders, orders.name, 1)
    ensure_dead_letter_topic(cluster, view.dead_topic, [orders.name])
    producer = cluster.producer()
    for number, (value, topic) in enumerate(
        [
            (b'{"order_id": "o1", "pieces": 3}', orders.name),
            (b'{"order_id": "<img src=x onerror=alert(1)>", "pieces": "many"}', orders.name),
            (b"\xff\xfe", f"{name}-gone"),
        ]
    ):
        error_headers = {"message": "pieces: no number", "topic": topic, "partition": 0, "offset": number}
        headers = [
            (f"__headrace.errors.{field}", str(value).encode()) for field, value in error_headers.items()
        ]
        producer.produce(view.dead_topic, key=b"k", value=value, headers=[*headers])
    assert producer.flush(30) == 0
    return app


@pytest.fixture
def page(screen: Page, shop: App, cluster: Cluster, tmp_path: Path) -> Iterator[Page]:
    messages: list[str] = []
    screen.on("dialog", lambda dialog: messages.append(dialog.message))
    with served(shop, cluster, tmp_path) as http:
        open_at(screen, http, "/dead")
        yield screen
        # No value of the log was interpreted as markup.
        assert messages == []
        screen.goto("about:blank")


def test_letters_are_read_previewed_replayed_and_dismissed(page: Page, shop: App, cluster: Cluster) -> None:
    topic, dead = shop.topics[0].name, shop.views[0].dead_topic
    page.get_by_role("row", name=dead).click()
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(4)
    rows.filter(has_text="onerror").click()
    letter = page.locator('[data-test="letter"]')
    expect(letter).to_contain_text("pieces: no number")
    expect(letter).to_contain_text(f"{topic}/0/1")
    expect(letter).to_contain_text(f"view {shop.views[0].name}")
    expect(letter.locator('[data-test="bytes"]').last).to_contain_text("<img src=x")

    page.locator('[data-test="correct"]').click()
    page.locator('[data-test="value"]').fill('{"order_id": "o2", "pieces": "many"}')
    page.locator('[data-test="check"]').click()
    expect(page.get_by_text("the corrected value would be rejected again")).to_be_visible()
    page.locator('[data-test="close"]').click()

    page.locator('[data-test="replay-all"]').click()
    preview = page.locator('[data-test="preview"]')
    expect(preview).to_contain_text(f"2 would be written to topic {topic}")
    expect(preview).to_contain_text("1 of these would be rejected again")
    expect(preview).to_contain_text("1 cannot be written back")
    assert cluster.ends(topic) == {0: 0}
    page.locator('[data-test="run"]').click()
    expect(page.locator('[data-test="result"]')).to_contain_text(f"2 were written to topic {topic}")
    page.locator('[data-test="close"]').click()
    assert len([*read(cluster, topic, {0: (0, cluster.ends(topic)[0])})]) == 2

    page.locator('[data-test="state"]').select_option("open")
    expect(rows).to_have_count(2)
    page.locator('[data-test="choose"]').first.check()
    page.locator('[data-test="dismiss-chosen"]').click()
    page.locator('[data-test="reason"]').fill("a test")
    page.locator('[data-test="run"]').click()
    expect(page.locator('[data-test="result"]')).to_contain_text("1 was dismissed")
    page.locator('[data-test="close"]').click()
    expect(page.get_by_text("No letter is open.")).to_be_visible()


def test_a_click_on_a_checkbox_chooses_its_letter_in_any_row(page: Page, shop: App) -> None:
    page.get_by_role("row", name=shop.views[0].dead_topic).click()
    boxes = page.locator('[data-test="choose"]')
    expect(boxes).to_have_count(3)
    # The first row is active, and its letter cannot be written back.
    boxes.nth(2).click()
    expect(boxes.nth(2)).to_be_checked()
    boxes.nth(1).click()
    expect(page.locator('[data-test="replay-chosen"]')).to_have_text("Replay 2…")
    boxes.nth(2).click()
    expect(boxes.nth(2)).not_to_be_checked()
    expect(page.locator('[data-test="replay-chosen"]')).to_have_text("Replay 1…")
