"""The JavaScript client in Chromium: offline, cut off, in two tabs. No write is lost or doubled; copies match views."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page, Route

from faults.serve.chromium import open_page
from faults.serve.http import Http
from faults.serve.local_server import Process, served
from headrace.app import App
from headrace.client.cluster import Cluster
from tests.remote.pages import QUEUE, begin, copied, drain, expect_equal, expect_prices, prices, put, wait_in
from tests.remote.unreliable_network import Network
from tests.unit.repository.snippets import blocks
from tests.unit.repository.tracked import ROOT

DAY_MS = 24 * 3_600_000


def test_a_page_writes_and_reads_its_own_writes(
    server: Http, network: Network, page: Page, topic: str, view: str
) -> None:
    begin(page, network, server.token)
    big = 2**62 + 1
    body = {"value": {"fruit_id": "exact", "price": "12345678901.123456", "pieces": big, "weight": 0.1}}
    server.post(f"/v1/topics/{topic}/records", body).expect(200)
    result = page.evaluate(
        """async ([topic, view]) => {
          const fruits = remote.view(view), keys = ["", ".", "..", "a/b", "ä?#%2F", "x y"];
          const price = 2.625, weight = NaN;
          for (const fruit_id of keys.slice(1)) await remote.topic(topic).write({ fruit_id, price, weight });
          const rows = [];
          for (const key of keys) rows.push((await fruits.get(key))?.fruit_id ?? null);
          const exact = await fruits.get("exact");
          await remote.topic(topic).delete({ fruit_id: "x y" });
          const gone = await fruits.get("x y");
          const some = [];
          const query = { filter: "price = 2.625", sort: "-fruit_id", limit: 2 };
          for await (const row of fruits.rows(query)) some.push(row.fruit_id);
          const summary = ({ code, status, retriable }) => [code, status, retriable];
          const error = await fruits.all({ filter: "price >" }).catch(summary);
          const given = await fruits.all({ signal: AbortSignal.abort("enough") }).catch((reason) => reason);
          return { rows, gone, some, error, given, price: exact.price, pieces: String(exact.pieces),
                   kind: typeof exact.pieces, nan: (await fruits.get("a/b")).weight, json: JSON.stringify(remote) };
        }""",
        [topic, view],
    )
    assert result["rows"] == [None, ".", "..", "a/b", "ä?#%2F", "x y"]
    assert result["gone"] is None
    assert result["some"] == ["ä?#%2F", "a/b", "..", "."]
    assert result["error"] == ["HR-SERVE-FILTER", 400, False]
    assert result["given"] == "enough"
    assert (result["price"], result["pieces"], result["kind"]) == ("12345678901.123456", str(big), "bigint")
    assert result["nan"] == "NaN"
    assert server.token not in result["json"]


def test_offline_writes_are_sent_once_in_order_and_the_copy_catches_up(
    cluster: Cluster,
    server: Http,
    network: Network,
    context: BrowserContext,
    origin: str,
    page: Page,
    topic: str,
    view: str,
) -> None:
    for number in range(5):
        put(server, topic, f"off{number}", number)
    begin(page, network, server.token, view=view)
    expect_equal(page, server, view)
    before = copied(page, view)

    context.set_offline(True)
    network.set_mode("cut")
    assert page.evaluate(QUEUE, [topic, "offline", 0, 10]) == 10
    put(server, topic, "off0", 100)
    server.post(f"/v1/topics/{topic}/records", {"key": {"fruit_id": "off1"}, "value": None}).expect(200)
    page.wait_for_function("window.copy.state === 'offline'")
    assert copied(page, view) == before
    assert page.evaluate("copy.get('off0')")["price"] == 0

    # The tab ends and another one starts, still without the server; the page itself can be loaded.
    page.close()
    context.set_offline(False)
    page = open_page(context, origin)
    begin(page, network, server.token, view=view)
    assert copied(page, view) == before
    assert page.evaluate(QUEUE, [topic, "offline", 10, 15]) == 15

    # Requests arrive but responses are lost: they are sent again, also after a reload of the page.
    for _ in range(2):
        lost = network.dropped_responses
        network.set_mode("deaf")
        page.evaluate("offline.retry()")
        wait_in(page, lambda lost=lost: network.dropped_responses > lost, "answers to be lost")
        page.reload()
        page.wait_for_function("window.ready")
        begin(page, network, server.token, view=view)
    network.set_mode("open")
    drain(page)
    expect_prices(cluster, server, topic, "offline", list(range(15)))
    # Once a read sees the write, the copy gets it too.
    assert page.evaluate("async (view) => (await remote.view(view).get('offline')).price", view) == 14
    expect_equal(page, server, view)
    result = {row["fruit_id"]: row["price"] for row in copied(page, view)}
    assert (result["off0"], "off1" in result) == (100, False)


def test_a_write_before_a_kill_of_the_server_is_stored_once(
    server: Http,
    cluster: Cluster,
    home: Path,
    origin: str,
    network: Network,
    page: Page,
    topic: str,
    view: str,
) -> None:
    other_server = Process(
        "tests.remote.market:app", cluster.bootstrap, home, environment={"HEADRACE_SERVE__ORIGINS": origin}
    )
    network.connect_to(other_server.port)
    begin(page, network, server.token, "killed", view)
    page.wait_for_function("copy.state === 'live'")
    network.set_mode("deaf")
    page.evaluate(QUEUE, [topic, "killed", 0, 3])
    wait_in(page, lambda: prices(server, topic, "killed") == [0], "the first write")
    assert page.evaluate("offline.outbox.pending()")[0]["tried"] is not None
    other_server.kill()
    # Another server of the app knows the outcome.
    network.connect_to(server.port)
    network.set_mode("open")
    drain(page)
    expect_prices(cluster, server, topic, "killed", [0, 1, 2])
    expect_equal(page, server, view)


def test_a_page_follows_the_first_rows_of_a_query(
    server: Http, network: Network, page: Page, topic: str, view: str
) -> None:
    begin(page, network, server.token, "first", view)
    for number in range(3):
        put(server, topic, f"first{number}", number)
    follow = """async (view) => {
      const query = { filter: 'fruit_id startswith "first"', sort: "-price", limit: 1 };
      for await (const { rows } of remote.view(view).changes(query)) if (rows[0]?.price === 2) return rows;
    }"""
    assert [row["fruit_id"] for row in page.evaluate(follow, view)] == ["first2"]


def test_an_unreliable_network_loses_and_doubles_nothing(
    cluster: Cluster, server: Http, network: Network, page: Page, topic: str, view: str
) -> None:
    chance = random.Random(1)
    begin(page, network, server.token, "random", view)
    page.evaluate(
        """(view) => {
          window.steps = [];
          const sum = (offsets) => Object.values(offsets).reduce((all, one) => all + one, 0);
          (async () => {
            for await (const { whole, position, rows } of remote.view(view).changes())
              steps.push([whole, sum(position.offsets), rows.find((row) => row.fruit_id === "random")?.price ?? null]);
          })();
        }""",
        view,
    )
    count = 20
    for number in range(count):
        page.evaluate(QUEUE, [topic, "random", number, number + 1])
        put(server, topic, f"other{chance.randrange(5)}", number)
        if chance.random() < 0.4:
            network.set_mode(chance.choice(["open", "cut", "deaf"]))
        page.wait_for_timeout(chance.randrange(40))
    network.set_mode("open")
    drain(page)
    expect_prices(cluster, server, topic, "random", list(range(count)))
    expect_equal(page, server, view)
    page.evaluate("window.dispatchEvent(new Event('online'))")
    page.wait_for_function(f"steps.some(([, , price]) => price === {count - 1})")
    steps = page.evaluate("steps")
    assert [whole for whole, _, _ in steps].count(True) == 1
    ends = [end for _, end, _ in steps]
    assert ends == sorted(set(ends))


def test_after_an_expired_cursor_the_copy_loads_a_snapshot_and_is_correct(
    app: App,
    server: Http,
    cluster: Cluster,
    home: Path,
    origin: str,
    network: Network,
    page: Page,
    topic: str,
    view: str,
) -> None:
    put(server, topic, "gone", 1)
    begin(page, network, server.token, "old", view)
    expect_equal(page, server, view)
    network.set_mode("cut")
    page.wait_for_function("copy.state === 'offline'")
    server.post(f"/v1/topics/{topic}/records", {"key": {"fruit_id": "gone"}, "value": None}).expect(200)
    for number in range(30):
        put(server, topic, "old", number)
    # The history of this server is too short to resume from the cursor.
    with served(app, cluster, home, origins=origin, history_bytes=1_000) as short_history_server:
        network.connect_to(short_history_server.port)
        network.set_mode("open")
        page.evaluate("offline.retry()")
        expect_equal(page, server, view)
        assert any("409" in line for line in short_history_server.server_log.lines)  # type: ignore[attr-defined]
        assert page.evaluate("async () => (await copy.get('gone')) ?? null") is None
        page.evaluate("offline.close()")
    # An invalid cursor, for example of another release, also leads to a snapshot.
    network.connect_to(server.port)
    begin(page, network, server.token, "old")
    page.evaluate(
        """async (view) => {
          const { copies, done } = offline.begin(["copies"], "readwrite");
          const request = copies.getAllKeys();
          await new Promise((done) => { request.onsuccess = done; });
          copies.put({ name: request.result[0], key: ["fruit_id"], cursor: "no cursor", position: null });
          await done;
          window.copy = await offline.copy(view);
        }""",
        view,
    )
    page.wait_for_function("copy.state === 'live'")
    expect_equal(page, server, view)


def test_tabs_share_one_queue_and_one_copy(
    cluster: Cluster,
    server: Http,
    network: Network,
    context: BrowserContext,
    origin: str,
    page: Page,
    topic: str,
    view: str,
) -> None:
    pages = [page, open_page(context, origin)]
    network.set_mode("cut")
    for number, tab in enumerate(pages):
        begin(tab, network, server.token, "tabs", view)
        tab.evaluate(QUEUE, [topic, f"tab{number}", 0, 5])
    network.set_mode("open")
    for number, tab in enumerate(pages):
        drain(tab)
        expect_prices(cluster, server, topic, f"tab{number}", list(range(5)))
        tab.wait_for_function("copy.state === 'live'")
    expect_equal(pages[1], server, view)
    # A tab that is opened later gets the current state.
    pages.append(open_page(context, origin))
    begin(pages[2], network, server.token, "tabs", view)
    pages[2].wait_for_function("copy.state === 'live'")
    # The working tab closes, and another takes over.
    pages[0].close()
    put(server, topic, "tabs", 1)
    expect_equal(pages[1], server, view)
    # A dropped copy is deleted and can be created again.
    pages[1].close()
    pages[2].evaluate("(view) => offline.drop(view)", view)
    assert pages[2].evaluate("async () => (await copy.all()).rows.length") == 0
    expect_equal(pages[2], server, view)


def test_a_refused_write_is_kept_with_its_reason_and_a_missing_token_is_waited_for(
    cluster: Cluster, server: Http, network: Network, page: Page, topic: str, view: str
) -> None:
    page.evaluate("window.token = 'hr_wrong'")
    page.evaluate(
        "async (url) => { remote = new headrace.Headrace(url, { token: () => window.token });"
        " offline = await Offline.open(remote, { name: 'refused', writesMax: 3, rowsMax: 1 }); }",
        f"http://127.0.0.1:{network.port}",
    )
    page.evaluate("async (topic) => { await offline.outbox.write(topic, { colour: 'red' }); }", topic)
    assert page.evaluate(QUEUE, [topic, "refused", 0, 2]) == 3
    full = page.evaluate(
        "async (topic) => offline.outbox.write(topic, { fruit_id: 'x', price: 1 }).catch((error) => error.code)",
        topic,
    )
    assert full == "HR-BROWSER-QUEUE-FULL"
    page.wait_for_function("offline.outbox.state === 'blocked'")
    assert page.evaluate("offline.outbox.error.code") == "HR-SERVE-LOGIN"
    page.evaluate("(token) => { window.token = token; }", server.token)
    drain(page)
    expect_prices(cluster, server, topic, "refused", [0, 1])
    (refused,) = page.evaluate("offline.outbox.refused()")
    assert refused["problem"]["code"] == "HR-SERVE-REQUEST"
    page.evaluate("(seq) => offline.outbox.discard(seq)", refused["seq"])
    assert page.evaluate("offline.outbox.refused()") == []
    # A copy above its row limit, of one row, fails.
    put(server, topic, "another", 1)
    page.evaluate("async (view) => { window.copy = await offline.copy(view); }", view)
    page.wait_for_function("copy.state === 'failed' && copy.error.code === 'HR-BROWSER-COPY-SIZE'")
    assert page.evaluate("copy.all()") == {"rows": [], "position": None}
    closed = "(offline.close(), offline.outbox.pending().catch((error) => error.code))"
    assert page.evaluate(closed) == "HR-BROWSER-CLOSED"


def test_a_wrong_clock_makes_only_old_attempts_doubtful(
    cluster: Cluster, server: Http, network: Network, page: Page, topic: str
) -> None:
    begin(page, network, server.token, "clock")
    page.evaluate("window.now = Date.now; window.jump = (ms) => { Date.now = () => window.now() + ms; }")
    network.set_mode("deaf")
    page.evaluate(QUEUE, [topic, "clock", 0, 2])
    wait_in(page, lambda: prices(server, topic, "clock") == [0], "the first write")
    # The first attempt is too old, or of unknown age: a person must check it. The next write is certain.
    page.evaluate(f"jump({7 * DAY_MS}); offline.retry()")
    wait_in(page, lambda: prices(server, topic, "clock") == [0, 1], "the next write")
    page.evaluate(f"jump({-2 * DAY_MS}); offline.retry()")
    wait_in(page, lambda: len(page.evaluate("offline.outbox.refused()")) == 2, "both writes to be refused")
    refused = page.evaluate("offline.outbox.refused()")
    assert [write["problem"]["code"] for write in refused] == ["HR-BROWSER-UNFIT"] * 2
    network.set_mode("open")
    # Time-outs use the monotonic clock.
    page.evaluate(f"jump({300 * DAY_MS})")
    page.evaluate(QUEUE, [topic, "clock", 2, 3])
    drain(page)
    expect_prices(cluster, server, topic, "clock", [0, 1, 2])


def test_invalid_responses_stop_neither_the_outbox_nor_the_copy(
    cluster: Cluster, server: Http, network: Network, page: Page, topic: str, view: str
) -> None:
    allowed = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
    events = {**allowed, "Content-Type": "text/event-stream"}
    answers: list[dict[str, Any]] = [
        {"status": 200, "body": "<html>log in to our network</html>", "headers": allowed},
        {"status": 200, "body": '{"token":"t","records":[{}]}', "headers": allowed},
        {"status": 200, "body": "null", "headers": allowed},
        {"status": 404, "body": "<html>", "headers": allowed},
        {
            "status": 503,
            "body": '{"code":7,"detail":{},"next":[]}',
            "headers": {**allowed, "Retry-After": "0"},
        },
        {"status": 429, "body": "null", "headers": {**allowed, "Retry-After": "soon"}},
        {"status": 302, "headers": {**allowed, "Location": "/elsewhere"}},
        {"status": 500, "body": "x" * 100_000, "headers": allowed},
        {"status": 200, "body": "data: {\n\n", "headers": events},
        {"status": 200, "body": 'data: {"type":"changes","rows":[]}\n\n', "headers": events},
        {"status": 200, "body": "data: null\n\n", "headers": events},
        {"status": 200, "body": 'data: {"type":"bye","retry_ms":-5}\n\n', "headers": events},
    ]
    requests = {"records": 0, "changes": 0}

    def garble(route: Route) -> None:
        kind = "records" if "/records" in route.request.url else "changes"
        if route.request.method == "OPTIONS":
            route.continue_()
            return
        requests[kind] += 1
        result = answers[: 8 if kind == "records" else None]
        if requests[kind] <= len(result):
            route.fulfill(**result[requests[kind] - 1])
        else:
            route.continue_()

    page.route("**/v1/**/records", garble)
    page.route("**/v1/**/changes*", garble)
    begin(page, network, server.token, "garbled", view)
    page.evaluate(QUEUE, [topic, "garbled", 0, 3])
    wait_in(page, lambda: page.evaluate("offline.retry()") or requests["changes"] > len(answers), "the copy")
    drain(page)
    expect_prices(cluster, server, topic, "garbled", [0, 1, 2])
    assert requests["records"] == 8 + 3
    expect_equal(page, server, view)
    assert page.evaluate("offline.outbox.refused()") == []


def test_a_token_is_sent_only_in_a_header(server: Http, network: Network, page: Page, view: str) -> None:
    begin(page, network, server.token, "secret", view)
    expect_equal(page, server, view)
    lines = bytes(network.received).split(b"\r\n")
    with_token = {line.split(b":")[0].lower() for line in lines if server.token.encode() in line}
    assert with_token == {b"authorization"}
    stored = page.evaluate(
        """async () => {
          let all = JSON.stringify([location.href, { ...localStorage }, { ...sessionStorage }, document.cookie]);
          for (const { name } of await indexedDB.databases()) {
            const resultOf = (request) => new Promise((done) => { request.onsuccess = () => done(request.result); });
            const database = await resultOf(indexedDB.open(name));
            for (const store of database.objectStoreNames)
              all += headrace.stringify(await resultOf(database.transaction(store).objectStore(store).getAll()));
            database.close();
          }
          return all;
        }"""
    )
    assert "cursor" in stored
    assert server.token not in stored
    refused = page.evaluate(
        """() => {
          try { new headrace.Headrace("http://shop.example", { token: "hr_x" }); } catch (error) { return error.code; }
        }"""
    )
    assert refused == "HR-BROWSER-UNFIT"
    page.evaluate("offline.erase()")
    assert "secret" not in json.dumps(page.evaluate("indexedDB.databases()"))


def test_the_server_serves_the_client_with_an_etag(server: Http, page: Page) -> None:
    first = Http(server.port).get("/client/headrace.js")
    assert first.status == 200
    assert first.headers["content-type"].startswith("text/javascript")
    conditional = Http(server.port).get(
        "/client/headrace.js", headers={"If-None-Match": first.headers["etag"]}
    )
    assert (conditional.status, conditional.body) == (304, b"")
    loaded = page.evaluate(
        """async (url) => [
          Object.keys(await import(url + "/client/headrace.js")),
          Object.keys(await import(url + "/client/offline.js")),
        ]""",
        f"http://127.0.0.1:{server.port}",
    )
    names = ["Headrace", "HeadraceError", "deletions", "newRequest", "parse", "stringify", "upserts"]
    assert [sorted(keys) for keys in loaded] == [names, ["Offline"]]


def test_the_snippets_of_the_client_docs_run_in_a_page(server: Http, app: App, page: Page) -> None:
    # tests/browser/test_sections.py tests the other snippet.
    (block,) = [block for block in blocks((ROOT / "docs" / "clients.md").read_text()) if block.kind == "js"]
    code = block.text.replace("https://shop.example", f"http://127.0.0.1:{server.port}")
    for topic, view in [(app.topics[0].name, app.views[0].name)]:
        code = code.replace('view("fruits")', f'view("{view}")').replace('copy("fruits"', f'copy("{view}"')
        code = code.replace('"fruits"', f'"{topic}"')
    page.evaluate(
        "(token) => { window.sessionToken = token; window.shown = []; window.show = (rows) => shown.push(...rows); }",
        server.token,
    )
    page.add_script_tag(type="module", content=code + "\nwindow.done = true;")
    page.wait_for_function("window.done && window.shown.some((row) => row.fruit_id === 'plum')")
    assert page.evaluate("window.faults") == []
