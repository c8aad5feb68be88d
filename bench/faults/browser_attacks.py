"""X27, attacks by way of a browser, in Chromium: nothing that is shown is run, and no other site gets an answer.

The log of an app has script in keys, values, headers, names of groups and clients, reasons of dead letters and alerts.
A run opens every page that shows one of them, statements and filters that fail with script in them, and addresses that
are script. Then a page of another site tries to read, to write, to load a script, to follow a view by WebSocket and by
events, and to show the page in a frame; and a name that was pointed at the server is asked. What must hold: the script
is there as text; none of it has run or become an element, and the policy of the page had nothing to stop; the other
site is answered with 403 whatever it asks, the other name with 400, and the log of the app has not grown.
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

from bench.faults.browser_payloads import payload
from bench.faults.browser_scene import BrowserScene, browser_scene
from bench.faults.outcome import Outcome
from bench.faults.workplace import workplace
from tests.browser.complaints import complaints_of, policy
from tests.remote.chromium import browser, site

__all__ = ["UNPROTECTED", "run"]

FAULT = "X27"
UNPROTECTED = {
    "page-escaping": r"^the policy of the page had to stop",
    "page-escaping-and-policy": r"^script has run",
    "origin-check": r"^a page of another site was answered",
    "host-check": r"^a foreign name was answered",
}
_WAIT_MS = 60_000
_SETTLE_MS = 100
"""For what an image or a frame would still do."""
_LOG_S_MAX = 10.0
_SECTIONS = ("", "graph", "topics", "groups", "flows", "views", "dead", "sql", "alerts")
_WATCH = """
  addEventListener("securitypolicyviolation", (event) =>
    (window.violations ??= []).push(`${event.effectiveDirective} ${event.sample}`));
"""
_SHOWN = """([place, text]) => window.hacked || window.violations
  || [...document.querySelectorAll(place)].some((one) => one.textContent.includes(text))"""
_ELEMENTS = "document.querySelectorAll('[data-x27], main [onload], main [onerror], main script').length"
ATTEMPTS = """async ([http, topic, view]) => {
  const outcome = (asked) => asked.then((found) => found.type, (error) => error.name);
  const body = JSON.stringify({ value: { product: "stolen", amount: 1 } });
  const records = `${http}/v1/topics/${topic}/records`;
  const json = { "Content-Type": "application/json" };
  return {
    read: await outcome(fetch(`${http}/v1/app`)),
    blind: await outcome(fetch(`${http}/v1/app/now`, { mode: "no-cors" })),
    rows: await outcome(fetch(`${http}/v1/views/${view}/rows`, { mode: "no-cors", credentials: "include" })),
    write: await outcome(fetch(records, { method: "POST", body, mode: "no-cors" })),
    asked: await outcome(fetch(records, { method: "POST", body, headers: json })),
    script: await new Promise((told) => {
      const made = document.createElement("script");
      made.src = `${http}/page/api.js`;
      made.type = "module";
      made.onload = () => told("loaded");
      made.onerror = () => told("refused");
      document.head.append(made);
    }),
    socket: await new Promise((told) => {
      const made = new WebSocket(http.replace("http", "ws") + `/v1/views/${view}/changes`);
      made.onopen = () => { made.close(); told("open"); };
      made.onerror = () => told("refused");
    }),
  };
}"""
"""What each gives is told by the server's own log: the browser does not tell it to a page of another site."""


def run(
    seed: int, *, protected: bool = True, without: str = "page-escaping", visits: int | None = None
) -> Outcome:
    """``visits`` is for a share: how many pages are opened, and not all."""
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        browser_scene(home, rng, "" if protected else without) as scene,
        browser() as chromium,
    ):
        attack = _Attack(scene, chromium, rng, outcome, home, "" if protected else UNPROTECTED[without])
        attack.run(visits)
        outcome.cases = outcome.hits
        outcome.problems += [f"the server did not foresee:\n{one}" for one in scene.server.faults()]
        outcome.peak_rss_mb = scene.server.rss_mb("VmHWM")
    return outcome


class _Found(Exception):
    """What a run without a protection is about was shown."""


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
        self._at = f"http://127.0.0.1:{scene.server.port}"

    def run(self, count: int | None) -> None:
        try:
            self._other_sites()
            context = self._chromium.new_context(viewport={"width": 1440, "height": 900})
            context.set_default_timeout(_WAIT_MS)
            context.add_init_script(_WATCH)
            page = context.new_page()
            complaints = complaints_of(page, policy)
            # The first shows what every browser would run.
            first, *others = self._visits()
            self._rng.shuffle(others)
            for visit in [first, *others][:count]:
                visit(page)
                self._judge(page, complaints)
            context.close()
        except _Found:
            pass

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)
        if self._finding and self._outcome.shows(self._finding):
            raise _Found

    # Pages of ours

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
            functools.partial(self._open, place=place, shown=shown) for place, shown in pages.items()
        ]
        for section in _SECTIONS:
            text = payload(self._rng)
            number = text.split()[0]
            place = f"{section}/{_quoted(text)}" if section else _quoted(text)
            shown = [("main", "" if section in ("graph", "sql", "alerts") else number)]
            visits.append(functools.partial(self._open, place=place, shown=shown))
        visits += [self._letter, self._filter_error, self._sql_result, self._sql_error, self._documents]
        return visits

    def _open(self, page: Page, place: str, shown: Sequence[tuple[str, str]]) -> None:
        """Loaded anew, also where the page is there already."""
        page.goto("about:blank")
        page.goto(f"{self._at}/#/{place}")
        for where, text in shown:
            self._expect_shown(page, place, where, text)

    def _expect_shown(self, page: Page, place: str, where: str, text: str) -> None:
        try:
            page.wait_for_function(_SHOWN, arg=[where, text])
        except TooLate:
            body = page.evaluate("document.body.innerText")
            self._object(f"{place} does not show {text!r} in {where}: {body!r:.300}")
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
        asked = urllib.parse.urlencode({"filter": f"`{text}` = 1"})
        self._open(page, f"views/{self._scene.view}?{asked}", [("[data-test=problem]", text.split()[0])])

    def _sql_result(self, page: Page) -> None:
        text, name = payload(self._rng), payload(self._rng)
        quoted, named = text.replace("'", "''"), name.replace('"', '""')
        if self._fill_sql(page, f"SELECT '{quoted}' AS \"{named}\""):
            self._expect_shown(page, "sql", "[data-test=sql-rows] thead", name)
            self._expect_shown(page, "sql", "[data-test=sql-rows] tbody", text)

    def _sql_error(self, page: Page) -> None:
        text = payload(self._rng)
        named = text.replace('"', '""')
        if self._fill_sql(page, f'SELECT "{named}" FROM "{named}"'):
            self._expect_shown(page, "sql", "[data-test=problem]", text.split()[0])

    def _fill_sql(self, page: Page, sql: str) -> bool:
        self._open(page, "sql", [("[data-test=run]", "")])
        if page.evaluate("!!(window.violations || window.hacked)"):
            return False
        page.fill("[data-test=sql-text]", sql)
        page.click("[data-test=run]")
        return True

    def _documents(self, page: Page) -> None:
        """What the server answers with is a document of its own, if a browser is led there."""
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
            answer = page.goto(f"{self._at}{path}")
            self._outcome.hits += 1
            if answer is not None and "content-security-policy" not in answer.headers:
                self._object(f"{path:.80} has no policy")
            if page.evaluate("window.hacked ?? null") is not None:
                self._object(f"script has run in {path:.80}")

    def _judge(self, page: Page, complaints: list[str]) -> None:
        page.wait_for_timeout(_SETTLE_MS)
        where = urllib.parse.unquote(page.url)
        if page.evaluate("window.hacked ?? null") is not None:
            self._object(f"script has run in {where:.200}")
        stopped = page.evaluate("window.violations ?? []")
        if stopped:
            self._object(f"the policy of the page had to stop {stopped[:2]!r:.200} in {where:.200}")
        elements = page.evaluate(_ELEMENTS)
        if elements:
            self._object(f"{elements} elements of a payload are part of {where:.200}")
        if complaints:
            self._object(f"{where:.200} complains: {complaints[:2]!r:.300}")
            complaints.clear()

    # Pages of others

    def _other_sites(self) -> None:
        folder = self._home / "site"
        folder.mkdir()
        (folder / "frame.html").write_text(f'<iframe src="{self._at}/"></iframe>')
        ends = self._scene.cluster.ends(self._scene.topic)
        with site(folder) as origin:
            name = f"x{self._rng.randrange(10**6)}.localhost"
            foreign = origin.replace("127.0.0.1", name)
            self._expect_refused(f"{origin}/page.html", self._at, 403, "a page of another site")
            self._expect_refused(f"{foreign}/page.html", self._at, 403, "a page of another site")
            host = f"http://{name}:{self._scene.server.port}"
            self._expect_refused(f"{foreign}/page.html", host, 400, "a foreign name")
            self._expect_unknown_host(host)
            self._expect_unframed(f"{origin}/frame.html")
        if self._scene.cluster.ends(self._scene.topic) != ends:
            self._object("a page of another site was answered: it has written a record")

    def _expect_refused(self, page_at: str, target: str, status: int, who: str) -> None:
        context = self._chromium.new_context()
        page = context.new_page()
        page.goto(page_at)
        before = len(self._requests())
        found = page.evaluate(ATTEMPTS, [target, self._scene.topic, self._scene.view])
        deadline = time.monotonic() + _LOG_S_MAX
        while len(self._requests()) < before + len(found) and time.monotonic() < deadline:
            time.sleep(0.01)
        asked = self._requests()[before:]
        context.close()
        self._outcome.hits += len(found)
        wrong = [one for one in asked if one["status"] != status]
        if wrong:
            told = ", ".join(f"{one['method']} {one['route']} {one['status']}" for one in wrong)
            self._object(f"{who} was answered, and not with {status}: {told}")
        if len(asked) != len(found):
            self._object(f"{who} asked {len(found)} times, and the log has {len(asked)}: {asked}")
        if (found["read"], found["asked"], found["script"], found["socket"]) != (
            *("TypeError", "TypeError"),
            *("refused", "refused"),
        ):
            self._object(f"{who} was answered: {found}")

    def _expect_unknown_host(self, host: str) -> None:
        context = self._chromium.new_context()
        page = context.new_page()
        for path in ("/", "/page/frame.js", "/v1/app", f"/{_quoted(payload(self._rng))}"):
            answer = page.goto(f"{host}{path}")
            self._outcome.hits += 1
            code = answer.json().get("code") if answer is not None and answer.status == 400 else None
            if answer is None or (answer.status, code) != (400, "HR-SERVE-HOST"):
                self._object(
                    f"a foreign name was answered at {path:.80} with {answer and answer.status}, {code}"
                )
        context.close()

    def _expect_unframed(self, at: str) -> None:
        context = self._chromium.new_context()
        page = context.new_page()
        page.goto(at)
        self._outcome.hits += 1
        if any(frame.locator("#page").count() for frame in page.frames[1:]):
            self._object("a page of another site has the page in a frame")
        context.close()

    def _requests(self) -> list[Any]:
        log = self._scene.server.data / "requests.log"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
