"""The dashboard and the alert rules of ``contrib`` use metrics that a broker and a run export."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.servers.headrace_broker import start_headrace
from faults.servers.server import free_port
from tests.cli.runner import Headrace

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
RULES = CONTRIB / "prometheus" / "headrace.rules.yml"
DASHBOARD = CONTRIB / "grafana" / "headrace.json"
NAME = re.compile(r"\b(?:headrace|kafka|process)_[a-z0-9_]+\b")
FAMILY = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)

APP = """
from dataclasses import dataclass
from headrace import App

@dataclass(frozen=True)
class Order:
    order: str

app = App("shop")
orders = app.topic("orders", Order, key="order")
app.view("latest", orders)
"""


def exported_metrics(address: str) -> set[str]:
    """Return the names of all metrics that the page declares."""
    page = urllib.request.urlopen(address, timeout=30).read().decode()
    metric_names: set[str] = set()
    for name, kind in FAMILY.findall(page):
        metric_names |= (
            {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
        )
    return metric_names


def queries(node: Any) -> Iterator[str]:
    """Return all queries of a dashboard, at any depth."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            yield from queries(value)
    elif isinstance(node, list):
        for value in node:
            yield from queries(value)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    home = tmp_path_factory.mktemp("monitored")
    (home / "backup").mkdir()
    (home / "shop.py").write_text(APP)
    port = free_port()
    options = ["--metrics", f"127.0.0.1:{port}", "--backup", str(home / "backup")]
    server = start_headrace(home / "broker", options)
    try:
        broker = exported_metrics(f"http://127.0.0.1:{port}/metrics")
        words = ("run", "shop:app", "--json", "--data", str(home / "data"), "--metrics", "127.0.0.1:0")
        with Headrace(server.bootstrap).started(*words, cwd=home) as process:
            assert process.stdout is not None
            texts = (json.loads(line).get("text", "") for line in process.stdout)
            address = next(text for text in texts if text.startswith("metrics are at ")).split()[-1]
            run = exported_metrics(address)
            process.kill()
            process.wait(60)
    finally:
        server.kill()
    assert broker
    assert run
    return broker | run


def test_every_alert_rule_uses_an_exported_metric_and_has_a_description(names: set[str]) -> None:
    rules = RULES.read_text().split("- alert: ")[1:]
    assert len(rules) > 10
    for rule in rules:
        (expression,) = re.findall(r"^\s+expr: (.+)$", rule, re.MULTILINE)
        used = set(NAME.findall(expression))
        assert used, rule
        assert used <= names, f"not exported: {used - names}"
        assert expression.count("(") == expression.count(")")
        assert re.search(r"^\s+summary: \"", rule, re.MULTILINE), rule
        assert re.search(r"^\s+severity: (critical|warning)$", rule, re.MULTILINE), rule


def test_every_dashboard_panel_uses_an_exported_metric(names: set[str]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    found = list(queries(dashboard))
    assert len(found) > len(dashboard["panels"]) > 10
    for query in found:
        used = set(NAME.findall(query))
        assert used <= names, f"not exported: {used - names}"
        assert query.count("(") == query.count(")")
    assert {"headrace_time_to_loss_seconds", "headrace_backup_behind_records"} <= {
        name for query in found for name in NAME.findall(query)
    }
