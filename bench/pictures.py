"""Pictures of the page, of the shop at work and of an app that is empty, then broken, then gone.

    python -m bench.pictures [--home DIR] [--settle SECONDS] [--only NAME ...]

They are what Chromium draws of ``headrace run --serve``, and land in docs/images. What runs is a copy of this tree in
a folder of its own, for a picture must not show where somebody keeps theirs.
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
from playwright.sync_api import Browser, Page

from tests.remote.chromium import browser

__all__ = ["main"]

_TREE = Path(__file__).parents[1]
_IMAGES = _TREE / "docs" / "images"
_DESK = {"width": 1440, "height": 900}
_PHONE = {"width": 390, "height": 844}
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


def _seen(test: str, then_ms: int = 1_500) -> Callable[[Page], None]:
    def steps(page: Page) -> None:
        page.wait_for_selector(f'[data-test="{test}"]')
        page.wait_for_timeout(then_ms)

    return steps


def _searched(page: Page) -> None:
    page.wait_for_selector('[data-test="search-progress"][data-state="done"]')
    page.wait_for_timeout(300)


def _first_letter(page: Page) -> None:
    page.wait_for_selector("tbody tr.opens")
    page.locator("tbody tr.opens td").nth(2).click()
    page.wait_for_selector('[data-test="letter"]')
    page.wait_for_timeout(500)


def _live(page: Page) -> None:
    page.wait_for_selector('[data-test="live"]')
    page.locator('[data-test="live"]').click()
    page.wait_for_timeout(4_000)


def _asked(page: Page) -> None:
    page.locator('[data-test="run"]').click()
    page.wait_for_selector('[data-test="answer"]')
    page.get_by_role("tab", name="Chart").click()
    page.wait_for_timeout(1_000)


_QUERY = re.sub(r"\s", lambda found: f"%{ord(found[0]):02X}", _SQL)
_ASKED = _WHERE.replace("&", "%26").replace("+", "%2B").replace(" ", "%20").replace('"', "%22")
SHOP = [
    Shot("graph", "#/graph", steps=_seen("edge-rate", 2_500)),
    Shot("graph-dark", "#/graph?node=flow:enrich_orders", dark=True, steps=_seen("graph-panel", 2_500)),
    Shot("graph-phone", "#/graph", phone=True, steps=_seen("edge-rate", 2_500)),
    Shot("flows", "#/flows"),
    Shot("flow", "#/flows/sum_revenue"),
    Shot("topics", "#/topics", steps=lambda page: page.wait_for_timeout(8_000)),
    Shot("messages", f"#/topics/orders/messages?where={_ASKED}", steps=_searched),
    Shot("groups", "#/groups/billing", steps=_seen("seek")),
    Shot("dead", "#/dead/enrich_orders.dead", steps=_first_letter),
    Shot("views", "#/views", steps=_seen("views")),
    Shot("view", "#/views/ranking", steps=_live),
    Shot("view-phone", "#/views/ranking", phone=True, steps=_live),
    Shot("sql", f"#/sql?sql={_QUERY}", steps=_asked),
    Shot("alerts", "#/alerts", dark=True, steps=_seen("changes")),
]

# Its feed waits to be told; the third currency it takes is one that the flow does not know.
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
def _opened(found: Browser, address: str, shot: Shot) -> Iterator[Page]:
    context = found.new_context(
        viewport=_PHONE if shot.phone else _DESK,
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


def _take(found: Browser, address: str, shots: list[Shot]) -> None:
    for shot in shots:
        with _opened(found, address, shot) as page:
            _save(page, shot.name)


@contextlib.contextmanager
def _running(home: Path, app: str, feed: str) -> Iterator[tuple[str, str, subprocess.Popen[bytes]]]:
    """The page's address, the log's, and the process."""
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
        *(str(Path(one).resolve()) for one in os.environ.get("PYTHONPATH", "").split(":")[2:]),
    ]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths)}
    with output.open("wb") as out:
        process = subprocess.Popen(command, cwd=home, env=environment, stdout=out, stderr=out)
    try:
        page = _until(lambda: _found(r"page is at (\S+)", output, process), "the page's address")
        log = _until(lambda: _found(r"log at ([\d.:]+)", output, process), "the log's address")
        yield page[1], log[1], process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _found(pattern: str, output: Path, process: subprocess.Popen[bytes]) -> re.Match[str] | None:
    if process.poll() is not None:
        raise RuntimeError(f"it has ended; it said:\n{output.read_text()[-4_000:]}")
    return re.search(pattern, output.read_text())


def _until(ask: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := ask():
            return found
        time.sleep(0.5)
    raise TimeoutError(f"{what} did not come in {seconds:.0f} s")


def _nodes(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/v1/app/now", timeout=10) as answer:
        return dict(json.load(answer)["nodes"])


def _all_flow(address: str) -> bool:
    nodes = _nodes(address)
    return all(node["per_s_in"] for name, node in nodes.items() if name.startswith("flow:"))


def _read_some(log: str) -> Consumer:
    """A group that is at work, and behind."""
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


def _shop(found: Browser, home: Path, settle_s: float, shots: list[Shot]) -> None:
    with _running(home, "examples.shop:app", "examples.shop.traffic:feed") as (address, log, _):
        _until(lambda: _all_flow(address), "the first batch of every flow")
        time.sleep(settle_s)
        consumer = _read_some(log)
        try:
            _take(found, address, shots)
        finally:
            consumer.close()


def _tills(found: Browser, home: Path) -> None:
    """Empty, then failed, then gone."""
    (home / "tills.py").write_text(_TILLS, encoding="utf-8")
    with _running(home, "tills:app", "tills:feed") as (address, _, process):
        _until(lambda: _nodes(address)["flow:convert"]["state"] == "running", "the flow")
        _take(found, address, [Shot("empty", "#/graph"), Shot("empty-messages", "#/topics/payments")])
        (home / "build" / "go").touch()
        _until(lambda: _nodes(address)["flow:convert"]["state"] == "failed", "the failure")
        _take(found, address, [Shot("broken", "#/graph"), Shot("broken-flow", "#/flows/convert")])
        with _opened(found, address, Shot("gone", "#/graph")) as page:
            process.kill()
            page.wait_for_selector('[data-test="lost"]')
            page.wait_for_timeout(500)
            _save(page, "gone")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "headrace")
    parser.add_argument("--settle", type=float, default=90, help="how long the shop runs before a picture")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the shop's; or 'tills'")
    options = parser.parse_args()
    shots = [one for one in SHOP if not options.only or one.name in options.only]
    shutil.rmtree(options.home, ignore_errors=True)
    for part in ("src", "examples"):
        shutil.copytree(_TREE / part, options.home / part)
    try:
        with browser() as found:
            if shots:
                _shop(found, options.home, options.settle, shots)
            if not options.only or "tills" in options.only:
                _tills(found, options.home)
    finally:
        shutil.rmtree(options.home, ignore_errors=True)


if __name__ == "__main__":
    main()
