"""A group may have any name. ``faults.serve.browser_attacks`` tests scripts in names and values."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from playwright.sync_api import Page, expect

from faults.serve.browser_scene import PAYLOADS
from faults.serve.http import Http
from headrace.app import App
from headrace.client.cluster import Cluster
from tests.browser.views_app import open_section


def test_the_link_of_a_group_works_with_any_characters_in_its_name(
    screen: Page, views_http: Http, cluster: Cluster, views_app: App
) -> None:
    group, topic = f"{PAYLOADS[0]}/../?a=b#c", views_app.topics[0].name
    consumer = cluster.consumer({"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    open_section(screen, views_http, "groups", "main table tbody tr")
    screen.locator("main table a", has_text=group).click()
    expect(screen.locator("main h1")).to_contain_text(group)
    expect(screen.locator("main")).to_contain_text(topic)
    screen.reload()
    expect(screen.locator("main")).to_contain_text(topic)
