"""The server shows running flows: numbers, plan, and an error at the user's line."""

from __future__ import annotations

import inspect
import uuid
from pathlib import Path
from typing import Any

from playwright.sync_api import expect
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from faults.serve.chromium import browser
from faults.serve.http import Http
from faults.wait import until
from headrace.app import App
from tests.flow.served_app import served_app
from tests.flow.test_flows import Sale, sale

HOSTILE = '<img src=x onerror="window.hacked=1">'


def test_a_flow_is_shown_with_its_numbers_plan_and_error_at_the_users_line(
    flow_world: FlowWorld, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"seen-{mark}")
    sales = app.topic(f"sales-{mark}", Sale, key="sale_id", time="at")
    sums, bad = app.topic(f"sums-{mark}", key="product_id"), app.topic(f"bad-{mark}", key="sale_id")

    @app.flow(reads=[sales], writes=sums, name=f"sum-{mark}", unbounded=True)
    def sum_up(sales: DataFrame) -> DataFrame:
        return sales.groupBy("product_id").agg(F.sum("amount").alias("amount"))

    def failing(text: str) -> str:
        raise ValueError(f"no product {text}")

    @app.flow(reads=[sales], writes=bad, name=f"bad-{mark}", deterministic=True)
    def break_down(sales: DataFrame) -> DataFrame:
        return sales.select("sale_id", F.udf(failing, "string", useArrow=False)("product_id").alias("text"))

    app.view(f"behind-bad-{mark}", bad)
    flow_world.declare(app)
    flow_world.write(
        sales, [sale(number, product=f"{HOSTILE}{number % 3}", after_s=number) for number in range(10)]
    )
    with served_app(flow_world, app, tmp_path) as (_, http):
        now = until(lambda: _derived(http, mark), "one flow to end and one to derive", timeout_s=120)
        good, broken = now["nodes"][f"flow:sum-{mark}"], now["nodes"][f"flow:bad-{mark}"]
        assert (good["state"], good["cause"], good["rows_in"], good["late"]) == ("running", False, 10, 0)
        assert good["latency_ms"] > 0
        assert good["watermark_held_by"] == sales.name
        assert good["lag"]["records"] == 0
        assert broken["cause"] is True
        # The view only waits for rows that the failed flow has not written, so the view is not a cause.
        assert now["nodes"][f"view:behind-bad-{mark}"]["cause"] is False
        line = now["health"]["lines"][0]
        assert (line["state"], line["path"]) == ("bad", ["flows", f"bad-{mark}"])
        assert f"no product {HOSTILE}" in line["text"]
        status = http.get(f"/v1/flows/bad-{mark}").expect(200)
        assert (status["error"]["file"], status["error"]["line"]) == (
            __file__,
            inspect.getsourcelines(failing)[1] + 1,
        )
        assert f"no product {HOSTILE}" in status["error"]["text"]
        detail = http.get(f"/v1/flows/sum-{mark}").expect(200)
        assert "HashAggregate" in detail["plan"]
        assert detail["error"] is None
        assert detail["inputs"][0]["topic"] == sales.name
        assert detail["generation"]["generation"] == 1
        assert sum(batch["rows_in"] for batch in detail["batches"]) == 10
        _expect_text(http, f"bad-{mark}")


def _expect_text(http: Http, flow: str) -> None:
    """Check that the page shows a value of the log inside an error message as text."""
    with browser() as chromium:
        page = chromium.new_page()
        page.goto(f"http://127.0.0.1:{http.port}/#/flows/{flow}")
        for element in ("flow-error", "health"):
            expect(page.locator(f"[data-test={element}]").first).to_contain_text(HOSTILE, timeout=120_000)
        assert page.evaluate("window.hacked ?? null") is None
        assert page.evaluate("document.querySelectorAll('#page img').length") == 0


def _derived(http: Http, mark: str) -> Any:
    now = http.get("/v1/app/now").expect(200)
    good, broken = now["nodes"][f"flow:sum-{mark}"], now["nodes"][f"flow:bad-{mark}"]
    done = good["rows_in"] == 10 and good["latency_ms"] and broken["state"] == "failed"
    return now if done and good["lag"]["records"] == 0 else None
