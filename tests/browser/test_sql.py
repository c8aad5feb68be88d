"""SQL on the page: table, chart and downloads; a link never runs a statement."""

from __future__ import annotations

import json
import sys
import urllib.parse
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from faults.serve.http import Http
from headrace.app import App
from tests.browser.views_app import FRUITS, open_section, put

TEXT, ANSWER = "[data-test=sql-text]", "[data-test=answer]"
BIG = 2**60 + 1


@pytest.fixture(scope="module", autouse=True)
def fruits(views_http: Http, views_app: App) -> None:
    values = [
        {"fruit_id": f"=sql-{n}", "price": n, "pieces": BIG, "picked": f"2026-01-0{n + 1}T00:00:00Z"}
        for n in range(4)
    ]
    token = put(views_http, views_app.topics[0].name, *values)
    views_http.get(f"/v1/views/{FRUITS}/rows", after=token, wait="20s", limit=1).expect(200)


def _statement(columns: str) -> str:
    return f"SELECT {columns} FROM \"{FRUITS}\" WHERE fruit_id LIKE '=sql-%' ORDER BY 1"


def test_a_statement_in_a_link_runs_only_after_a_click(screen: Page, views_http: Http) -> None:
    requests: list[str] = []
    screen.on(
        "request", lambda request: requests.append(request.url) if request.url.endswith("/v1/sql") else None
    )
    sql = _statement("picked, price")
    open_section(screen, views_http, f"sql?{urllib.parse.urlencode({'sql': sql})}", "[data-test=not-run]")
    assert screen.input_value(TEXT) == sql
    assert requests == []
    screen.focus(TEXT)
    screen.keyboard.press("Control+Enter")
    expect(screen.locator("[data-test=answer-line]")).to_contain_text("4 rows in ")
    expect(screen.locator("[data-test=sql-rows] tbody tr").nth(3)).to_contain_text("2026-01-04T00:00:00Z")
    expect(screen.locator("[data-test=positions]")).to_contain_text(f"{FRUITS} at offsets ")
    screen.click("[data-test=tab-chart]")
    expect(screen.locator("[data-test=chart] canvas")).to_be_visible()
    assert screen.get_attribute("[data-test=chart]", "data-points") == "4"
    assert screen.input_value("[data-test=chart-form]") == "line"
    screen.select_option("[data-test=chart-form]", "bars")
    expect(screen.locator("[data-test=chart] canvas")).to_be_visible()

    screen.reload()
    screen.wait_for_selector("[data-test=not-run]")
    assert (screen.input_value(TEXT), len(requests)) == (sql, 1)
    screen.fill(TEXT, "")
    screen.click("[data-test=history] summary")
    screen.click("[data-test=history] button >> nth=0")
    assert screen.input_value(TEXT) == sql


def test_a_result_disappears_when_its_statement_changes(screen: Page, views_http: Http) -> None:
    statement = _statement("picked, price, pieces, price * 2 AS twice")
    open_section(
        screen, views_http, f"sql?{urllib.parse.urlencode({'sql': statement})}", "[data-test=not-run]"
    )
    screen.click("[data-test=run]")
    screen.click("[data-test=tab-chart]")
    screen.select_option("[data-test=chart-y]", label="twice")
    # A result with fewer columns than the one before.
    screen.fill(TEXT, _statement("picked, price"))
    screen.click("[data-test=run]")
    expect(screen.locator("[data-test=chart]")).to_contain_text("price over picked")
    # Leave the section and return by a link with another statement.
    screen.evaluate("(to) => { location.hash = to; }", f"#/views/{FRUITS}")
    screen.wait_for_selector("[data-test=rows]")
    screen.evaluate("() => { location.hash = '#/sql?sql=SELECT+1'; }")
    screen.wait_for_selector("[data-test=not-run]")
    assert screen.locator(ANSWER).count() == 0


def test_an_error_has_its_reason_and_views_and_columns_can_be_inserted(
    screen: Page, views_http: Http
) -> None:
    open_section(screen, views_http, "sql", TEXT)
    screen.fill(TEXT, "SELECT prise FROM")
    screen.click(f"[data-view='{FRUITS}'] summary")
    screen.click(f"[data-view='{FRUITS}'] .sql-name >> nth=0")
    assert screen.input_value(TEXT) == f'SELECT prise FROM "{FRUITS}"'
    screen.click("[data-test=run]")
    problem = screen.locator("[data-test=problem]")
    expect(problem).to_contain_text("prise")
    expect(problem).to_contain_text("HR-SERVE-SQL")
    screen.fill(TEXT, "DROP TABLE fruits")
    screen.click("[data-test=run]")
    expect(problem).to_contain_text("HR-SERVE-SQL-REFUSED")
    assert screen.query_selector(ANSWER) is None


def test_a_download_has_exact_values_and_no_formulas(screen: Page, views_http: Http, tmp_path: Path) -> None:
    open_section(screen, views_http, "sql", TEXT)
    screen.fill(TEXT, _statement("fruit_id, pieces, -price AS owed, taste"))
    screen.click("[data-test=run]")
    screen.wait_for_selector(ANSWER)
    texts = {}
    for file_format in ("csv", "json"):
        with screen.expect_download() as download:
            screen.click(f"[data-test={file_format}]")
        download.value.save_as(tmp_path / file_format)
        texts[file_format] = (tmp_path / file_format).read_bytes().decode()
    assert texts["csv"].split("\r\n")[:3] == [
        "fruit_id,pieces,owed,taste",
        f'"\'=sql-0",{BIG},0,',
        f'"\'=sql-1",{BIG},-1,',
    ]
    assert json.loads(texts["json"])[1] == {"fruit_id": "=sql-1", "pieces": BIG, "owed": -1, "taste": None}


def test_the_page_of_a_server_without_sql_shows_its_views(
    screen: Page, views_http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    open_section(screen, views_http, "sql", "[data-test=no-sql]")
    expect(screen.locator("[data-test=no-sql]")).to_contain_text('pip install "headrace[sql]"')
    open_section(screen, views_http, "views", "[data-test=views] tbody tr")
    expect(screen.locator("[data-test=sql-note]")).to_contain_text("does not run SQL")
