"""Fault X27, attacks through a browser, in Chromium: the web UI must not run scripts in the data that it shows, and the
server must refuse requests from other sites.

The log of an app has scripts in keys, values, headers, names of groups and clients, reasons of dead letters and alerts.
A run opens every page of the web UI that shows one of them. It also opens failing statements and filters that contain
script, and URLs that contain script. Then a page of another site tries to read, to write, to load a script, to follow a
view by WebSocket and by server-sent events, and to show the web UI in a frame. The run also sends requests to another
host name that resolves to the server. What must hold:

    the script is shown as text; it never ran or became an element, and the content security policy blocked nothing
    the other site gets 403 for every request, and the other host name gets 400
    the log of the app has not grown
"""

from __future__ import annotations

import functools
import json
import random
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page
from playwright.sync_api import TimeoutError as TooLate

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.browser_scene import BrowserScene, browser_scene, payload
from faults.serve.chromium import browser, complaints_of, policy, site

__all__ = ["UNPROTECTED", "run"]

FAULT = "X27"
UNPROTECTED = {
    "page-escaping": r"^the policy of the page had to block",
    "page-escaping-and-policy": r"^script has run",
    "origin-check": r"^a page of another site got a response",
    "host-check": r"^a foreign host name got a response",
}
_WAIT_MS = 60_000
_SETTLE_MS = 100
"""How long to wait for effects of an image or a frame."""
_LOG_S_MAX = 10.0
_SECTIONS = ("", "graph", "topics", "groups", "flows", "views", "dead", "sql", "alerts")
_WATCH = """
  addEventListener("securitypolicyviolation", (event) =>
    (window.violations ??= []).push(`${event.effectiveDirective} ${event.sample}`));
"""
_SHOWN = """([place, text]) => window.hacked || window.violations
  || [...document.querySelectorAll(place)].some((element) => element.textContent.includes(text))"""
_ELEMENTS = "document.querySelectorAll('[data-x27], main [onload], main [onerror], main script').length"
ATTEMPTS = """async ([http, topic, view]) => {
  const outcome = (request) => request.then((response) => response.type, (error) => error.name);
  const body = JSON.stringify({ value: { product: "stolen", amount: 1 } });
  const records = `${http}/v1/topics/${topic}/records`;
  const json = { "Content-Type": "application/json" };
  return {
    read: await outcome(fetch(`${http}/v1/app`)),
    blind: await outcome(fetch(`${http}/v1/app/now`, { mode: "no-cors" })),
    rows: await outcome(fetch(`${http}/v1/views/${view}/rows`, { mode: "no-cors", credentials: "include" })),
    write: await outcome(fetch(records, { method: "POST", body, mode: "no-cors" })),
    preflighted: await outcome(fetch(records, { method: "POST", body, headers: json })),
    script: await new Promise((resolve) => {
      const script = document.createElement("script");
      script.src = `${http}/page/api.js`;
      script.type = "module";
      script.onload = () => resolve("loaded");
      script.onerror = () => resolve("refused");
      document.head.append(script);
    }),
    socket: await new Promise((resolve) => {
      const socket = new WebSocket(http.replace("http", "ws") + `/v1/views/${view}/changes`);
      socket.onopen = () => { socket.close(); resolve("open"); };
      socket.onerror = () => resolve("refused");
    }),
  };
}"""
"""The attempts of another site. Only the server's log shows the responses, because the browser hides them."""


def run(
    seed: int, *, protected: bool = True, without: str = "page-escaping", visits: int | None = None
) -> Outcome:
    """``visits`` limits the number of opened pages, for quick runs."""
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        browser_scene(home, rng, "" if protected else without) as scene,
        browser() as chromium,
    ):
        attack = _Attack(scene, chromium, rng, outcome, home, "" if protected else UNPROTECTED[without])
        attack.run(visits)
        outcome.cases = outcome.hits
        outcome.problems += [
            f"the server logged an unexpected exception:\n{fault}"
            for fault in scene.server.unexpected_exceptions()
        ]
        outcome.peak_rss_mb = scene.server.rss_mb("VmHWM")
    return outcome


class _ProblemFound(Exception):
    """Raised when a run without a protection has reported the expected problem."""


class _Attack:
    def __init__(
        self,
        scene: BrowserScene,
        chromium: Browser,
        rng: random.Random,
        outcome: Outcome,
        home: Path,
        finding: str,
    ) -> None:
        self._scene = scene
        self._chromium = chromium
        self._rng = rng
        self._outcome = outcome
        self._home = home
        self._finding = finding
        self._address = f"http://127.0.0.1:{scene.server.port}"

    def run(self, count: int | None) -> None:
        try:
            self._other_sites()
            context = self._chromium.new_context(viewport={"width": 1440, "height": 900})
            context.set_default_timeout(_WAIT_MS)
            context.add_init_script(_WATCH)
            page = context.new_page()
            complaints = complaints_of(page, policy)
            # Begin every run with this visit, because every browser would run its script.
            first, *others = self._visits()
            self._rng.shuffle(others)
            for visit in [first, *others][:count]:
                visit(page)
                self._judge(page, complaints)
            context.close()
        except _ProblemFound:
            pass

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)
        if self._finding and self._outcome.has_finding(self._finding):
            raise _ProblemFound

    # Pages of the app

    def _visits(self) -> list[Callable[[Page], None]]:
        scene = self._scene
        topic, view = f"topics/{scene.topic}", f"views/{scene.view}"
        pages: dict[str, list[tuple[str, str]]] = {
            view: [("main table tbody", scene.note), ("main table tbody", scene.row_key)],
            f"{topic}/messages?record=0:0": [
                ("[data-test=record-headers] dt", scene.header),
                ("[data-test=record-headers] dd", scene.header_value),
                ("[data-test=record-key]", scene.key),
            ],
            f"{topic}/messages?record=0:1": [("[data-test=record-value]", scene.raw)],
            topic: [("main table tbody", scene.key)],
            "groups": [("main table tbody", scene.group)],
            f"groups/{_quoted(scene.group)}": [
                ("main h1", scene.group),
                ("main table[aria-label=Members]", scene.client),
            ],
            "dead": [("main", scene.dead_topic)],
            "alerts": [("[data-test=changes] table", scene.exception)],
            "views": [("[data-test=views] tbody", scene.view)],
            f"{view}/row/{_quoted(scene.row_key)}": [("[data-test=row]", scene.note)],
            "topics": [("main table tbody", scene.topic)],
            "flows": [("main", scene.flow.flow.name)],
            f"flows/{scene.flow.flow.name}": [("main", scene.flow.flow.name)],
            "graph": [("[data-test=node]", scene.view)],
        }
        visits: list[Callable[[Page], None]] = [
            functools.partial(self._open, address=address, expected=shown) for address, shown in pages.items()
        ]
        for section in _SECTIONS:
            text = payload(self._rng)
            number = text.split()[0]
            address = f"{section}/{_quoted(text)}" if section else _quoted(text)
            shown = [("main", "" if section in ("graph", "sql", "alerts") else number)]
            visits.append(functools.partial(self._open, address=address, expected=shown))
        visits += [self._letter, self._filter_error, self._sql_result, self._sql_error, self._documents]
        return visits

    def _open(self, page: Page, address: str, expected: Sequence[tuple[str, str]]) -> None:
        """Load the page, even if it is already open. ``expected`` are selectors and the texts that they must show."""
        page.goto("about:blank")
        page.goto(f"{self._address}/#/{address}")
        for selector, text in expected:
            self._expect_shown(page, address, selector, text)

    def _expect_shown(self, page: Page, address: str, selector: str, text: str) -> None:
        try:
            page.wait_for_function(_SHOWN, arg=[selector, text])
        except TooLate:
            body = page.evaluate("document.body.innerText")
            self._report_problem(f"{address} does not show {text!r} in {selector}: {body!r:.300}")
        self._outcome.hits += 1

    def _letter(self, page: Page) -> None:
        scene = self._scene
        self._open(page, f"dead/{scene.dead_topic}", [("main table tbody tr", scene.reason)])
        if page.evaluate("!window.violations && !window.hacked"):
            page.locator("main table tbody tr").first.click()
            self._expect_shown(page, "a dead letter", "[data-test=letter] dd", scene.exception)
            self._expect_shown(page, "a dead letter", "[data-test=letter]", scene.letter)

    def _filter_error(self, page: Page) -> None:
        text = payload(self._rng)
        query = urllib.parse.urlencode({"filter": f"`{text}` = 1"})
        self._open(page, f"views/{self._scene.view}?{query}", [("[data-test=problem]", text.split()[0])])

    def _sql_result(self, page: Page) -> None:
        text, name = payload(self._rng), payload(self._rng)
        literal, identifier = text.replace("'", "''"), name.replace('"', '""')
        if self._fill_sql(page, f"SELECT '{literal}' AS \"{identifier}\""):
            self._expect_shown(page, "sql", "[data-test=sql-rows] thead", name)
            self._expect_shown(page, "sql", "[data-test=sql-rows] tbody", text)

    def _sql_error(self, page: Page) -> None:
        text = payload(self._rng)
        identifier = text.replace('"', '""')
        if self._fill_sql(page, f'SELECT "{identifier}" FROM "{identifier}"'):
            self._expect_shown(page, "sql", "[data-test=problem]", text.split()[0])

    def _fill_sql(self, page: Page, sql: str) -> bool:
        self._open(page, "sql", [("[data-test=run]", "")])
        if page.evaluate("!!(window.violations || window.hacked)"):
            return False
        page.fill("[data-test=sql-text]", sql)
        page.click("[data-test=run]")
        return True

    def _documents(self, page: Page) -> None:
        """Navigate to the server's responses, which a browser then shows as documents."""
        text = _quoted(payload(self._rng))
        for path in (
            f"/v1/topics/{self._scene.topic}/records",
            f"/v1/views/{self._scene.view}/rows",
            f"/v1/views/{self._scene.view}/rows?filter={text}",
            f"/v1/views/{text}/rows",
            f"/{text}",
            f"/page/{text}",
            "/docs",
            "/openapi.json",
        ):
            answer = page.goto(f"{self._address}{path}")
            self._outcome.hits += 1
            if answer is not None and "content-security-policy" not in answer.headers:
                self._report_problem(f"{path:.80} has no content security policy")
            if page.evaluate("window.hacked ?? null") is not None:
                self._report_problem(f"script has run in {path:.80}")

    def _judge(self, page: Page, complaints: list[str]) -> None:
        page.wait_for_timeout(_SETTLE_MS)
        where = urllib.parse.unquote(page.url)
        if page.evaluate("window.hacked ?? null") is not None:
            self._report_problem(f"script has run in {where:.200}")
        blocked = page.evaluate("window.violations ?? []")
        if blocked:
            self._report_problem(f"the policy of the page had to block {blocked[:2]!r:.200} in {where:.200}")
        elements = page.evaluate(_ELEMENTS)
        if elements:
            self._report_problem(f"{elements} elements of a payload became elements of {where:.200}")
        if complaints:
            self._report_problem(f"{where:.200} complains: {complaints[:2]!r:.300}")
            complaints.clear()

    # Pages of other sites

    def _other_sites(self) -> None:
        folder = self._home / "site"
        folder.mkdir()
        (folder / "frame.html").write_text(f'<iframe src="{self._address}/"></iframe>')
        ends = self._scene.cluster.ends(self._scene.topic)
        with site(folder) as origin:
            name = f"x{self._rng.randrange(10**6)}.localhost"
            foreign = origin.replace("127.0.0.1", name)
            self._expect_refused(f"{origin}/page.html", self._address, 403, "a page of another site")
            self._expect_refused(f"{foreign}/page.html", self._address, 403, "a page of another site")
            host = f"http://{name}:{self._scene.server.port}"
            self._expect_refused(f"{foreign}/page.html", host, 400, "a foreign host name")
            self._expect_unknown_host(host)
            self._expect_unframed(f"{origin}/frame.html")
        if self._scene.cluster.ends(self._scene.topic) != ends:
            self._report_problem("a page of another site got a response: it has written a record")

    def _expect_refused(self, page_at: str, target: str, status: int, who: str) -> None:
        context = self._chromium.new_context()
        page = context.new_page()
        page.goto(page_at)
        before = len(self._requests())
        results = page.evaluate(ATTEMPTS, [target, self._scene.topic, self._scene.view])
        deadline = time.monotonic() + _LOG_S_MAX
        while len(self._requests()) < before + len(results) and time.monotonic() < deadline:
            time.sleep(0.01)
        requests = self._requests()[before:]
        context.close()
        self._outcome.hits += len(results)
        wrong = [request for request in requests if request["status"] != status]
        if wrong:
            listed = ", ".join(
                f"{request['method']} {request['route']} {request['status']}" for request in wrong
            )
            self._report_problem(f"{who} got a response other than {status}: {listed}")
        if len(requests) != len(results):
            self._report_problem(
                f"{who} sent {len(results)} requests, but the log has {len(requests)}: {requests}"
            )
        if (results["read"], results["preflighted"], results["script"], results["socket"]) != (
            *("TypeError", "TypeError"),
            *("refused", "refused"),
        ):
            self._report_problem(f"{who} got a response: {results}")

    def _expect_unknown_host(self, host: str) -> None:
        context = self._chromium.new_context()
        page = context.new_page()
        for path in ("/", "/page/frame.js", "/v1/app", f"/{_quoted(payload(self._rng))}"):
            answer = page.goto(f"{host}{path}")
            self._outcome.hits += 1
            code = answer.json().get("code") if answer is not None and answer.status == 400 else None
            if answer is None or (answer.status, code) != (400, "HR-SERVE-HOST"):
                self._report_problem(
                    f"a foreign host name got a response at {path:.80}: {answer and answer.status}, {code}"
                )
        context.close()

    def _expect_unframed(self, address: str) -> None:
        context = self._chromium.new_context()
        page = context.new_page()
        page.goto(address)
        self._outcome.hits += 1
        if any(frame.locator("#page").count() for frame in page.frames[1:]):
            self._report_problem("a page of another site shows the page in a frame")
        context.close()

    def _requests(self) -> list[Any]:
        log = self._scene.server.data / "requests.log"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
