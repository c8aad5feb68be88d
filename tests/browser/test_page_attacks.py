"""Attacks on the page: script in what it shows, and pages of other sites that would use it."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from playwright.sync_api import Browser, Page, expect

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_letters
from tests.browser.views_house import FRUITS, opened
from tests.remote.chromium import site
from tests.serve.http import Http

SCRIPT = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"><svg/onload=hacked=1>'
WAIT_MS = 120_000
# What each gives is told by the server's own log: the browser does not tell it to a page of another site.
ATTEMPTS = """async ([http, topic, view]) => {
  const outcome = (asked) => asked.then((found) => found.type, (error) => error.name);
  const socket = () => new Promise((told) => {
    const made = new WebSocket(http.replace("http", "ws") + `/v1/views/${view}/changes`);
    made.onopen = () => told("open");
    made.onerror = () => told("refused");
  });
  const body = JSON.stringify({ value: { fruit_id: "stolen", price: 1 } });
  const records = `${http}/v1/topics/${topic}/records`;
  return {
    read: await outcome(fetch(`${http}/v1/app`)),
    blind: await outcome(fetch(`${http}/v1/app/now`, { mode: "no-cors" })),
    stream: await outcome(fetch(`${http}/v1/app/now/stream`)),
    write: await outcome(fetch(records, { method: "POST", body, mode: "no-cors" })),
    asked: await outcome(fetch(records, { method: "POST", body, headers: { "Content-Type": "application/json" } })),
    script: await new Promise((told) => {
      const made = document.createElement("script");
      made.src = `${http}/page/api.js`;
      made.type = "module";
      made.onload = () => told("loaded");
      made.onerror = () => told("refused");
      document.head.append(made);
    }),
    socket: await socket(),
  };
}"""


@pytest.fixture(autouse=True)
def unharmed(screen: Page) -> Iterator[None]:
    """Whatever was shown, nothing of it has run or become a part of the page."""
    dialogs: list[str] = []
    screen.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    yield
    assert dialogs == []
    assert screen.evaluate("window.hacked ?? null") is None
    assert (
        screen.evaluate(
            "document.querySelectorAll('main img, main script, main [onload], main [onerror]').length"
        )
        == 0
    )


def _shown(screen: Page, place: str) -> None:
    expect(screen.locator(place).first).to_contain_text(SCRIPT, timeout=WAIT_MS)


def test_script_in_key_value_and_headers_of_a_message_is_text(
    screen: Page, views_http: Http, cluster: Cluster, fresh: Callable[[str], str]
) -> None:
    topic, text = fresh("attacked"), SCRIPT.encode()
    cluster.ensure_topic(topic, 1)
    producer = cluster.producer()
    producer.produce(topic, key=text, value=json.dumps({SCRIPT: SCRIPT}), headers=[(SCRIPT, text)])
    producer.produce(topic, key=text, value=text)
    assert producer.flush(30) == 0
    opened(screen, views_http, f"topics/{topic}/messages?record=0:1", "[data-test=record-value]")
    _shown(screen, "[data-test=record-value]")
    screen.keyboard.press("Escape")
    _shown(screen, "main table tbody")
    opened(screen, views_http, f"topics/{topic}/messages?record=0:0", "[data-test=record-headers]")
    _shown(screen, "[data-test=record-key]")
    expect(screen.locator("[data-test=record-headers] dt")).to_have_text(SCRIPT)
    expect(screen.locator("[data-test=record-headers] dd")).to_have_text(SCRIPT)


def test_script_in_the_name_of_a_group_is_text_and_its_link_finds_it(
    screen: Page, views_http: Http, cluster: Cluster, views_app: App
) -> None:
    group = f"{SCRIPT}/../?a=b#c"
    consumer = cluster.consumer({"group.id": group})
    consumer.commit(offsets=[TopicPartition(views_app.topics[0].name, 0, 0)], asynchronous=False)
    consumer.close()
    opened(screen, views_http, "groups", "main table tbody tr")
    screen.locator("main table a", has_text=group).click()
    expect(screen.locator("main h1")).to_contain_text(group)
    expect(screen.locator("main")).to_contain_text(views_app.topics[0].name)
    screen.reload()
    expect(screen.locator("main")).to_contain_text(views_app.topics[0].name, timeout=WAIT_MS)


def test_script_in_the_reason_of_a_dead_letter_is_text(
    screen: Page, views_http: Http, cluster: Cluster, views_app: App
) -> None:
    view = views_app.views[0]
    ensure_letters(cluster, view.dead_topic, [view.topic.name])
    told = {"message": SCRIPT, "exception": SCRIPT, "topic": SCRIPT, "partition": "0", "offset": "0"}
    producer = cluster.producer()
    headers = [(f"__headrace.errors.{name}", value.encode()) for name, value in told.items()]
    producer.produce(view.dead_topic, key=SCRIPT, value=SCRIPT, headers=[*headers, (SCRIPT, SCRIPT.encode())])
    assert producer.flush(30) == 0
    opened(screen, views_http, f"dead/{view.dead_topic}", "main table tbody tr")
    screen.locator("main table tbody tr", has_text=SCRIPT).first.click()
    _shown(screen, "[data-test=letter] dd")
    _shown(screen, "[data-test=letter] [data-test=bytes]")


def test_script_in_errors_and_in_what_sql_names_is_text(screen: Page, views_http: Http) -> None:
    asked = urllib.parse.urlencode({"filter": f"price > {SCRIPT}"})
    opened(screen, views_http, f"views/{FRUITS}?{asked}", "[data-test=problem]")
    opened(screen, views_http, "sql", "[data-test=sql-text]")
    quoted, named = SCRIPT.replace("'", "''"), SCRIPT.replace('"', '""')
    screen.fill("[data-test=sql-text]", f"SELECT '{quoted}' AS \"{named}\"")
    screen.click("[data-test=run]")
    _shown(screen, "[data-test=sql-rows] thead")
    _shown(screen, "[data-test=sql-rows] tbody")
    screen.fill("[data-test=sql-text]", f'SELECT "{named}" FROM "{named}"')
    screen.click("[data-test=run]")
    expect(screen.locator("[data-test=problem]")).to_contain_text("onerror", timeout=WAIT_MS)


def test_script_in_the_address_is_text(screen: Page, views_http: Http) -> None:
    hostile = urllib.parse.quote(SCRIPT, safe="")
    for section in ("", "topics/", "groups/", "flows/", "views/", "dead/"):
        opened(screen, views_http, f"{section}{hostile}", "main")
        expect(screen.locator("main"), section).to_contain_text("onerror", timeout=WAIT_MS)


def _log(http: Any) -> list[tuple[str, str, int]]:
    """Method, route and status of all that was asked."""
    told = [json.loads(line) for line in http.heard.lines]
    return [(one["method"], one["route"], one["status"]) for one in told]


def test_a_page_of_another_site_reads_nothing_writes_nothing_and_gets_no_socket(
    screen: Page, views_http: Http, views_app: App, cluster: Cluster, tmp_path: Path
) -> None:
    topic = views_app.topics[0].name
    ends, before = cluster.ends(topic), len(_log(views_http))
    with site(tmp_path) as origin:
        screen.goto(f"{origin}/page.html")
        found = screen.evaluate(ATTEMPTS, [f"http://127.0.0.1:{views_http.port}", topic, FRUITS])
    assert (found["read"], found["stream"], found["asked"]) == ("TypeError",) * 3
    assert (found["script"], found["socket"]) == ("refused", "refused")
    assert {found["blind"], found["write"]} <= {"opaque", "TypeError"}
    asked = _log(views_http)[before:]
    assert len(asked) == len(found)
    assert {status for _, _, status in asked} == {403}, asked
    assert cluster.ends(topic) == ends


def test_a_name_that_was_pointed_at_the_server_is_refused(
    screen: Page, views_http: Http, tmp_path: Path
) -> None:
    """As by DNS rebinding: for the browser it is the site that its page came from."""
    host = f"http://rebound.localhost:{views_http.port}"
    for path in ("/", "/page/frame.js", "/v1/app"):
        answer = screen.goto(f"{host}{path}")
        assert answer is not None
        assert (answer.status, answer.json()["code"]) == (400, "HR-SERVE-HOST")
    before = len(_log(views_http))
    with site(tmp_path) as origin:
        screen.goto(f"{origin.replace('127.0.0.1', 'rebound.localhost')}/page.html")
        found = screen.evaluate(ATTEMPTS, [host, "any", FRUITS])
    assert (found["read"], found["script"], found["socket"]) == ("TypeError", "refused", "refused")
    assert {status for _, _, status in _log(views_http)[before:]} == {400}


def test_no_other_site_has_the_page_in_a_frame(
    screen: Page, views_http: Http, chromium: Browser, tmp_path: Path
) -> None:
    (tmp_path / "frame.html").write_text(f'<iframe src="http://127.0.0.1:{views_http.port}/"></iframe>')
    with site(tmp_path) as origin:
        context = chromium.new_context()
        outside = context.new_page()
        outside.goto(f"{origin}/frame.html")
        (framed,) = outside.frames[1:]
        assert framed.locator("#page").count() == 0
        context.close()
