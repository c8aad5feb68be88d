"""What the pages show is what happens: their code runs, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .snippets import Reader, SnippetFailed, matches
from .tracked import short, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md"]


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_the_code_of_a_page_does_what_the_page_says(page: Path, tmp_path: Path) -> None:
    Reader(page, tmp_path).follow()


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("```console\n$ false\n```", "ended with 1"),
        ("```console\n$ echo one\ntwo\n```", "should print"),
        ("```console\n$ echo one\n```", "should print"),
        ("```console\n$ make nothing-of-the-kind\n```", "no target"),
        ("```console\necho\n```", "begins with"),
        ("```bash\ntrue\n```", "never be tried"),
        ("```\ntrue\n```", "never be tried"),
        ("```python\nassert 1 == 2, 'no sum'\n```", "no sum"),
        ("```python\nx = 1\n", "never ends"),
    ],
)
def test_a_page_that_says_what_does_not_happen_fails(page: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    with pytest.raises(AssertionError, match=says):
        Reader(path, tmp_path).follow()


def test_blocks_of_a_page_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "```console\n$ echo one > file\n$ cat file \\\n>   file\none\n...\n$ make test\n```\n"
        "```python\nwith open('file') as file: text = file.read()\n```\nand then\n"
        "```python\nassert text == 'one\\n'\n```\n",
        encoding="utf-8",
    )
    Reader(path, tmp_path).follow()


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (["a ... c"], "a b c\n", True),
        (["a", "...", "z"], "a\nb\nc\nz\n", True),
        (["a"], "a\nb\n", False),
        ([], "", True),
        ([], "a\n", False),
        (["a.c"], "abc\n", False),
    ],
)
def test_three_dots_stand_for_anything(expected: list[str], printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def test_an_error_of_a_page_is_an_assertion_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("words\n\n```console\n$ false\n```", encoding="utf-8")
    with pytest.raises(SnippetFailed, match=r"page\.md line 4"):
        Reader(path, tmp_path).follow()
