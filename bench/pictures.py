"""Takes screenshots of the page: the running shop, and an app that is empty, then failing, then unreachable.

    python -m bench.pictures [--home DIR] [--settle SECONDS] [--only NAME ...]

Chromium opens the page of ``headrace run --serve``. The images are written to docs/images. The apps run from a copy of
this tree in a separate folder, so that no image shows a developer's path.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from playwright.sync_api import Browser, Page, ViewportSize

from faults.serve.chromium import browser

__all__ = ["main"]

_TREE = Path(__file__).parents[1]
_IMAGES = _TREE / "docs" / "images"
_DESKTOP: ViewportSize = {"width": 1440, "height": 900}
_PHONE: ViewportSize = {"width": 390, "height": 844}
_SQL = """SELECT name, round(sum(r.amount), 2) AS revenue
FROM revenue r JOIN products p USING (product_id)
GROUP BY name ORDER BY revenue DESC LIMIT 12"""
_WHERE = 'value.quantity >= 3 && value.product_id in ["p00", "p01"]'


@dataclass(frozen=True)
class Shot:
    name: str
    hash: str
    dark: bool = False
    phone: bool = False
    steps: Callable[[Page], Any] = lambda page: page.wait_for_timeout(4_000)


def _wait_for_element(test: str, pause_ms: int = 1_500) -> Callable[[Page], None]:
    def steps(page: Page) -> None:
        page.wait_for_selector(f'[data-test="{test}"]')
        page.wait_for_timeout(pause_ms)

    return steps


def _wait_for_search(page: Page) -> None:
    page.wait_for_selector('[data-test="search-progress"][data-state="done"]')
    page.wait_for_timeout(300)


def _open_first_letter(page: Page) -> None:
    page.wait_for_selector("tbody tr.opens")
    page.locator("tbody tr.opens td").nth(2).click()
    page.wait_for_selector('[data-test="letter"]')
    page.wait_for_timeout(500)


def _turn_on_live(page: Page) -> None:
    page.wait_for_selector('[data-test="live"]')
    page.locator('[data-test="live"]').click()
    page.wait_for_timeout(4_000)


def _run_query(page: Page) -> None:
    page.locator('[data-test="run"]').click()
    page.wait_for_selector('[data-test="answer"]')
    page.get_by_role("tab", name="Chart").click()
    page.wait_for_timeout(1_000)


_QUERY = re.sub(r"\s", lambda match: f"%{ord(match[0]):02X}", _SQL)
_SEARCH = _WHERE.replace("&", "%26").replace("+", "%2B").replace(" ", "%20").replace('"', "%22")
SHOP = [
    Shot("graph", "#/graph", steps=_wait_for_element("edge-rate", 2_500)),
    Shot(
        "graph-dark",
        "#/graph?node=flow:enrich_orders",
        dark=True,
        steps=_wait_for_element("graph-panel", 2_500),
    ),
    Shot("graph-phone", "#/graph", phone=True, steps=_wait_for_element("edge-rate", 2_500)),
    Shot("flows", "#/flows"),
    Shot("flow", "#/flows/sum_revenue"),
    Shot("topics", "#/topics", steps=lambda page: page.wait_for_timeout(8_000)),
    Shot("messages", f"#/topics/orders/messages?where={_SEARCH}", steps=_wait_for_search),
    Shot("groups", "#/groups/billing", steps=_wait_for_element("seek")),
    Shot("dead", "#/dead/shop.enrich_orders.dead", steps=_open_first_letter),
    Shot("views", "#/views", steps=_wait_for_element("views")),
    Shot("view", "#/views/ranking", steps=_turn_on_live),
    Shot("view-phone", "#/views/ranking", phone=True, steps=_turn_on_live),
    Shot("sql", f"#/sql?sql={_QUERY}", steps=_run_query),
    Shot("alerts", "#/alerts", dark=True, steps=_wait_for_element("changes")),
]

# The feed of this app waits for the file build/go. The flow fails at CHF, which is not in RATES.
_TILLS = '''"""What tills took in, in one currency."""

import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from headrace import App
from headrace.stores import SQLite

app = App("tills")


@dataclass(frozen=True)
class Payment:
    payment_id: str
    till: str
    currency: str
    cents: int


payments = app.topic("payments", Payment, key="payment_id")
taken = app.topic("taken", key="payment_id")
RATES = {"EUR": 100, "USD": 92}


@F.udf(LongType())
def in_euro(cents, currency):
    return cents * RATES[currency] // 100


@app.flow(reads=[payments], writes=taken, deterministic=True)
def convert(payments):
    return payments.select("payment_id", "till", in_euro("cents", "currency").alias("cents"))


app.view("taken", taken, store=SQLite())


def feed(cluster, stop):
    producer, number = cluster.producer({}), 0
    while not stop.wait(0.1):
        if not Path("build/go").exists():
            continue
        number += 1
        currency = "CHF" if number > 100 else ["EUR", "USD"][number % 2]
        key, value = payments.encode(Payment(f"b-{number}", f"till {number % 7}", currency, number * 5))
        producer.produce(payments.name, value, key)
'''


def _save(page: Page, name: str) -> None:
    _IMAGES.mkdir(exist_ok=True)
    path = _IMAGES / f"{name}.png"
    path.write_bytes(page.screenshot())
    print(f"{path.relative_to(_TREE)}  {path.stat().st_size // 1000} kB", flush=True)


@contextlib.contextmanager
def _open_page(chromium: Browser, address: str, shot: Shot) -> Iterator[Page]:
    context = chromium.new_context(
        viewport=_PHONE if shot.phone else _DESKTOP,
        color_scheme="dark" if shot.dark else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    try:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto(f"{address}/{shot.hash}")
        shot.steps(page)
        yield page
    finally:
        context.close()


def _take(chromium: Browser, address: str, shots: list[Shot]) -> None:
    for shot in shots:
        with _open_page(chromium, address, shot) as page:
            _save(page, shot.name)


@contextlib.contextmanager
def _run_app(home: Path, app: str, feed: str) -> Iterator[tuple[str, str, subprocess.Popen[bytes]]]:
    """Yield the page's address, the log's address, and the process."""
    output = home / "build" / f"{app.partition(':')[0]}.log"
    output.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "headrace.cli", "run", app, "--feed", feed]
    command += [
        "--listen",
        "127.0.0.1:0",
        "--serve",
        "127.0.0.1:0",
        "--data",
        f"build/{app.partition(':')[0]}",
    ]
    paths = [
        "src",
        ".",
        *(str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(":")[2:]),
    ]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths)}
    with output.open("wb") as out:
        process = subprocess.Popen(command, cwd=home, env=environment, stdout=out, stderr=out)
    try:
        page = _until(
            lambda: _match_in_output(r"web UI is at (\S+)", output, process), "the web UI's address"
        )
        log = _until(lambda: _match_in_output(r"log at ([\d.:]+)", output, process), "the log's address")
        yield page[1], log[1], process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _match_in_output(pattern: str, output: Path, process: subprocess.Popen[bytes]) -> re.Match[str] | None:
    if process.poll() is not None:
        raise RuntimeError(f"the app exited; it printed:\n{output.read_text()[-4_000:]}")
    return re.search(pattern, output.read_text())


def _until(condition: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.5)
    raise TimeoutError(f"{what} did not appear within {seconds:.0f} s")


def _nodes(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/v1/app/now", timeout=10) as response:
        return dict(json.load(response)["nodes"])


def _all_flows_have_input(address: str) -> bool:
    nodes = _nodes(address)
    return all(node["per_s_in"] for name, node in nodes.items() if name.startswith("flow:"))


def _start_slow_group(log: str) -> Consumer:
    """Join a group, read and commit a few records, and return the consumer, which stays a member."""
    consumer = Consumer(
        {
            "bootstrap.servers": log,
            "group.id": "billing",
            "client.id": "billing-1",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["orders"])
    consumer.consume(1_000, 20)
    consumer.commit(asynchronous=False)
    return consumer


def _take_shop_pictures(chromium: Browser, home: Path, settle_s: float, shots: list[Shot]) -> None:
    with _run_app(home, "examples.shop:app", "examples.shop.traffic:feed") as (address, log, _):
        _until(lambda: _all_flows_have_input(address), "the first batch of every flow")
        time.sleep(settle_s)
        consumer = _start_slow_group(log)
        try:
            _take(chromium, address, shots)
        finally:
            consumer.close()


def _take_failing_app_pictures(chromium: Browser, home: Path) -> None:
    """Take the pictures of the app that is empty, then failing, then unreachable."""
    (home / "tills.py").write_text(_TILLS, encoding="utf-8")
    with _run_app(home, "tills:app", "tills:feed") as (address, _, process):
        _until(lambda: _nodes(address)["flow:convert"]["state"] == "running", "the flow")
        _take(chromium, address, [Shot("empty", "#/graph"), Shot("empty-messages", "#/topics/payments")])
        (home / "build" / "go").touch()
        _until(lambda: _nodes(address)["flow:convert"]["state"] == "failed", "the failure")
        _take(chromium, address, [Shot("broken", "#/graph"), Shot("broken-flow", "#/flows/convert")])
        with _open_page(chromium, address, Shot("gone", "#/graph")) as page:
            process.kill()
            page.wait_for_selector('[data-test="lost"]')
            page.wait_for_timeout(500)
            _save(page, "gone")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "headrace")
    parser.add_argument(
        "--settle", type=float, default=90, help="seconds that the shop runs before a picture (default 90)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="names of the shop's pictures, or 'tills' (default: all)"
    )
    options = parser.parse_args()
    shots = [shot for shot in SHOP if not options.only or shot.name in options.only]
    shutil.rmtree(options.home, ignore_errors=True)
    for part in ("src", "examples"):
        shutil.copytree(_TREE / part, options.home / part)
    try:
        with browser() as chromium:
            if shots:
                _take_shop_pictures(chromium, options.home, options.settle, shots)
            if not options.only or "tills" in options.only:
                _take_failing_app_pictures(chromium, options.home)
    finally:
        shutil.rmtree(options.home, ignore_errors=True)


if __name__ == "__main__":
    main()
