"""docs/architecture names every module of the package, and no page names a file that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.architecture import PACKAGE, PAGES, listed_modules, modules_of, named_files, package_dir

from .tracked import ROOT, short

OVERVIEW = ROOT / "docs" / "ARCHITECTURE.md"
OVERVIEW_WORDS_MAX = 2_500
"""The maximum length of the overview. A newcomer reads it in ten minutes."""
_pages = sorted(PAGES.glob("*.md"))


@pytest.mark.parametrize("page", _pages, ids=lambda page: page.stem)
def test_a_page_lists_every_module_of_its_package(page: Path) -> None:
    expected = [path.relative_to(PACKAGE).as_posix() for path in modules_of(page)]
    assert sorted(listed_modules(page)) == sorted(expected), "python -m tools.architecture writes the list"


def test_every_package_has_a_page() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert {page.stem for page in _pages} == packages


@pytest.mark.parametrize("page", [OVERVIEW, *_pages], ids=lambda page: page.stem)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    missing = [name for name in named_files(page.read_text(encoding="utf-8")) if not _exists(name, page)]
    assert missing == [], f"{short(page)} names files that do not exist"


def test_every_module_that_another_page_names_exists() -> None:
    """The other pages include decisions and how-tos. A name without a folder may be a script of the user."""
    missing = [
        f"{short(page)}: {name}"
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.parent != PAGES
        for name in named_files(page.read_text(encoding="utf-8"))
        if name.endswith(".py") and "/" in name and not _exists(name, OVERVIEW)
    ]
    assert missing == []


def _exists(name: str, page: Path) -> bool:
    """Return whether the path exists below the root, in ``headrace``, or in the package that the page describes."""
    if (ROOT / name).is_file() or (PACKAGE / name).is_file():
        return True
    return page != OVERVIEW and any(package_dir(page).rglob(name))


def test_the_overview_links_every_page_and_stays_short() -> None:
    text = OVERVIEW.read_text(encoding="utf-8")
    assert [page.stem for page in _pages if f"architecture/{page.name}" not in text] == []
    assert len(text.split()) <= OVERVIEW_WORDS_MAX
