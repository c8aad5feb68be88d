"""The tables of the documentation show the measured results, and list every fault that is tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.pages import PAGES, render
from bench.report import earlier_rows, write_faults
from faults import FAULTS
from faults.covered_code import code_digest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_match_the_results(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == render(page), "python -m bench.pages writes them"


def test_every_fault_is_explained_once() -> None:
    (page,) = (page for page in PAGES if page.stem == "faults")
    explained, _, counted = page.read_text(encoding="utf-8").partition("## Results")
    named = re.findall(r"(?m)^\| (X\d+) \|", explained)
    assert named == [name for name in FAULTS if name.startswith("X")]
    assert set(re.findall(r"(?m)^\| (X\d+) \|", counted)) <= set(named)


def test_a_fault_row_shows_held_failed_or_stale(tmp_path: Path) -> None:
    (page,) = (page for page in PAGES if page.stem == "faults")
    covers = FAULTS["X1"].covered_paths
    row = {
        "fault": "X1",
        "held": True,
        "runs": 1,
        "hits": 1,
        "lost": 0,
        "duplicated": 0,
        "peak_rss_mb": 1.0,
        "seeds": [1],
        "caught_unprotected": True,
        "failures": [],
        "commit": "c0ffee" * 7,
        "date": "2026-03-01",
        "code": code_digest(covers),
        "covers": covers,
    }
    failed = {"held": False, "failures": [{"seed": 7, "problems": ["lost"]}]}
    for change, result in (
        ({}, "held"),
        (failed, "FAILED (seeds 7)"),
        ({"code": "an earlier digest"}, "stale"),
    ):
        write_faults([{**row, **change}], tmp_path)
        text = render(page, tmp_path)
        assert f"| X1 | {result} | 1 | 1 | 0 | 0 | 1 MB | yes | c0ffeec0ffee | 2026-03-01 |" in text
        assert "Not counted yet: X2, X3, " in text


def test_a_page_shows_which_suite_was_not_measured_yet(tmp_path: Path) -> None:
    (page,) = (page for page in PAGES if page.stem == "performance")
    assert "<!-- begin serve -->\n\nNot measured yet.\n\n<!-- end serve -->" in render(page, tmp_path)


def test_the_memory_of_the_page_is_compared_with_its_memory_after_opening() -> None:
    rows = [row for row in earlier_rows("page") if row["unit"] == "MB" and row["goal"] is not None]
    assert [row["name"].partition(" after ")[0] for row in rows] == ["the page's heap", "the server's memory"]
    for row in rows:
        assert (row["peer"], row["goal"]) == ("the same when it was opened", 0.9)
        assert row["met"] is (row["ratio"] >= row["goal"])


def test_a_page_without_its_markers_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# No markers\n")
    monkeypatch.setitem(PAGES, page, ("log",))
    with pytest.raises(ValueError, match=r"page\.md must have the lines"):
        render(page)
