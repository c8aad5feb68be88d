"""A new section needs one file and two lines, as in the how-to."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from faults.serve.http import Http
from headrace.serve.page.assets import PAGE_FILES, Asset
from tests.browser.page_apps import open_at
from tests.unit.repository.snippets import blocks

_PAGE = Path(__file__).parents[2] / "docs/how-to/add-a-section.md"
_LIST = "sections.js"


def test_the_section_of_the_how_to_appears_on_the_page(
    screen: Page, small: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, lines = blocks(_PAGE.read_text(encoding="utf-8"))
    assert (file.kind, lines.kind) == ("js", "diff")
    added = [line[1:] for line in lines.text.splitlines() if line.startswith("+")]
    (neighbour_line,) = (line[1:] for line in lines.text.splitlines() if line.startswith(" "))
    before = PAGE_FILES[_LIST].body.decode()
    after = before.replace(neighbour_line, "\n".join((added[0], neighbour_line, added[1])))
    assert after != before
    for name, text in ((_LIST, after), ("sections/pulse.js", file.text)):
        monkeypatch.setitem(PAGE_FILES, name, Asset(text.encode(), PAGE_FILES[_LIST].media_type))
    open_at(screen, small)
    screen.keyboard.press("g")
    screen.keyboard.press("p")
    expect(screen.locator("[data-test=stat-up-for] .stat-value")).to_contain_text("s")
    expect(screen.locator("[data-test=nav-pulse]")).to_have_attribute("aria-current", "page")
    for other in ("graph", "flows", "alerts"):
        expect(screen.locator(f"[data-test=nav-{other}]")).to_be_visible()
