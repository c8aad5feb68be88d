"""The capacity page converts results to one core, and shows what is not measured yet."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from bench.capacity import FIGURES, Results, example, render_capacity, table
from bench.flow.suite import PARTS
from tools.paths import ROOT


def write(folder: Path, file: str, *rows: tuple[str, float, float]) -> None:
    documents = [{"name": name, "peer": "peer", "us": us, "them": them} for name, us, them in rows]
    (folder / f"{file}.json").write_text(json.dumps(documents))


def test_figures_are_converted_to_one_core_one_flow_and_one_million_keys(tmp_path: Path) -> None:
    write(
        tmp_path,
        "flow",
        ("driver's CPU per million events, map and filter", 20.0, 1.0),
        ("driver's memory, 20 flows in one app, map and filter", 2_900.0, 1_000.0),
        ("driver's memory, 1,000,000 keys of state in memory", 1_000.0, 100.0),
    )
    results = Results(tmp_path)
    computed = {
        name: FIGURES[name].text(results) for name in ("map", "first-flow", "further-flow", "state-memory")
    }
    assert computed == {
        "map": "50,000 events/s per core",
        "first-flow": "1,000 MB",
        "further-flow": "100 MB",
        "state-memory": "1,000 MB",
    }
    assert FIGURES["window"].text(results) == "not measured yet"
    assert dict(render_capacity(tmp_path))["example"].startswith("Not measured yet: log: server's CPU")


def test_a_figure_that_is_not_measured_yet_names_a_command_that_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for figure in FIGURES.values():
        match = re.fullmatch(r'make (bench-\w+)(?: ARGS="--only (\w+)")?', figure.command)
        assert match is not None
        assert re.search(rf"^{match[1]}:", makefile, re.MULTILINE)
        assert match[2] is None or match[2] in PARTS


def test_the_example_adds_up() -> None:
    results = Results()
    cores, memory, disk = example(results).splitlines()
    for line, digits in ((cores, 2), (memory, 0)):
        terms, total = re.findall(r"([\d,.]+) \(", line), re.search(r" = ([\d,.]+\d)", line)
        assert total is not None
        parts = [float(term.replace(",", "")) for term in terms]
        assert float(total[1].replace(",", "")) == pytest.approx(sum(parts), abs=len(parts) * 10**-digits)
    product = re.search(r"([\d,]+) × ([\d,]+) B × ([\d,]+) s × (\d+) = ([\d,]+) GB", disk)
    assert product is not None
    *factors, total_gb = (float(number.replace(",", "")) for number in product.groups())
    assert total_gb == pytest.approx(math.prod(factors) / 1e9, rel=0.02)


def test_every_figure_of_the_table_has_a_row() -> None:
    assert table(Results()).count("\n") == len(FIGURES) + 2
