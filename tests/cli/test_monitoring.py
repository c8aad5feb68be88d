"""The dashboard and the rules that come with the project use what a broker and a run really tell Prometheus."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runner import Headrace
from tests.support.embedded import start_headrace
from tests.support.server import free_port

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


def told(address: str) -> set[str]:
    """The names of all samples that a page may have."""
    page = urllib.request.urlopen(address, timeout=30).read().decode()
    found: set[str] = set()
    for name, kind in FAMILY.findall(page):
        found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return found


def queries(found: Any) -> Iterator[str]:
    """All that a dashboard asks, wherever it is."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            yield from queries(value)
    elif isinstance(found, list):
        for value in found:
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
        broker = told(f"http://127.0.0.1:{port}/metrics")
        words = ("run", "shop:app", "--json", "--data", str(home / "data"), "--metrics", "127.0.0.1:0")
        with Headrace(server.bootstrap).started(*words, cwd=home) as process:
            assert process.stdout is not None
            texts = (json.loads(line).get("text", "") for line in process.stdout)
            address = next(text for text in texts if text.startswith("metrics are at ")).split()[-1]
            run = told(address)
            process.kill()
            process.wait(60)
    finally:
        server.kill()
    assert broker
    assert run
    return broker | run


def test_every_rule_asks_for_what_is_told_and_says_what_it_is_about(names: set[str]) -> None:
    rules = RULES.read_text().split("- alert: ")[1:]
    assert len(rules) > 10
    for rule in rules:
        (asked,) = re.findall(r"^\s+expr: (.+)$", rule, re.MULTILINE)
        used = set(NAME.findall(asked))
        assert used, rule
        assert used <= names, f"nobody tells {used - names}"
        assert asked.count("(") == asked.count(")")
        assert re.search(r"^\s+summary: \"", rule, re.MULTILINE), rule
        assert re.search(r"^\s+severity: (critical|warning)$", rule, re.MULTILINE), rule


def test_every_panel_shows_what_is_told(names: set[str]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = list(queries(dashboard))
    assert len(asked) > len(dashboard["panels"]) > 10
    for query in asked:
        used = set(NAME.findall(query))
        assert used <= names, f"nobody tells {used - names}"
        assert query.count("(") == query.count(")")
    assert {"headrace_time_to_loss_seconds", "headrace_backup_behind_records"} <= {
        name for query in asked for name in NAME.findall(query)
    }
