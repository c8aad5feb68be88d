"""A group may have any name. Script in what pages show is in ``bench.faults.browser_attacks``."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from playwright.sync_api import Page, expect

from bench.faults.browser_payloads import PAYLOADS
from headrace.app import App
from headrace.client.cluster import Cluster
from tests.browser.views_house import opened
from tests.serve.http import Http


def test_the_link_of_a_group_finds_it_whatever_characters_its_name_has(
    screen: Page, views_http: Http, cluster: Cluster, views_app: App
) -> None:
    group, topic = f"{PAYLOADS[0]}/../?a=b#c", views_app.topics[0].name
    consumer = cluster.consumer({"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    opened(screen, views_http, "groups", "main table tbody tr")
    screen.locator("main table a", has_text=group).click()
    expect(screen.locator("main h1")).to_contain_text(group)
    expect(screen.locator("main")).to_contain_text(topic)
    screen.reload()
    expect(screen.locator("main")).to_contain_text(topic)
