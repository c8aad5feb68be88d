"""What the documentation says of results is what was measured, and every fault that is tried is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.faults import FAULTS
from bench.pages import PAGES, rendered


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_those_of_the_results(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == rendered(page), "python -m bench.pages writes them"


def test_every_fault_is_explained_once() -> None:
    (page,) = (page for page in PAGES if page.stem == "faults")
    explained, _, counted = page.read_text(encoding="utf-8").partition("## Counted")
    named = re.findall(r"(?m)^\| (X\d+) \|", explained)
    assert named == [name for name in FAULTS if name.startswith("X")]
    assert set(re.findall(r"(?m)^\| (X\d+) \|", counted)) <= set(named)


def test_what_was_not_measured_yet_is_said_so(tmp_path: Path) -> None:
    (page,) = (page for page in PAGES if page.stem == "performance")
    assert "<!-- begin serve -->\n\nNot measured yet.\n\n<!-- end serve -->" in rendered(page, tmp_path)


def test_a_page_without_its_marks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# No marks\n")
    monkeypatch.setitem(PAGES, page, ("log",))
    with pytest.raises(ValueError, match=r"page\.md must have the lines"):
        rendered(page)
