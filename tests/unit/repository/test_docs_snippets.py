"""The code on the pages runs with the shown results, and their links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .snippets import ONLY_SOAK, Reader, SnippetFailed, matches
from .tracked import short, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md"]


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_the_code_of_a_page_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    Reader(page, tmp_path).run_page()


@pytest.mark.soak
@pytest.mark.parametrize(
    "page", [page for page in PAGES if ONLY_SOAK in page.read_text(encoding="utf-8").splitlines()], ids=short
)
def test_the_whole_code_of_a_page_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    Reader(page, tmp_path, soak=True).run_page()


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_link_inside_the_project_has_a_target(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```console\n$ false\n```", "exited with code 1"),
        ("```console\n$ echo one\ntwo\n```", "should print"),
        ("```console\n$ echo one\n```", "should print"),
        ("```console\n$ make nothing-of-the-kind\n```", "no target"),
        ("```console\necho\n```", "begins with"),
        ("```bash\ntrue\n```", "never be run"),
        ("```\ntrue\n```", "never be run"),
        ("```python\nassert 1 == 2, 'no sum'\n```", "no sum"),
        ("```python\nx = 1\n", "never ends"),
    ],
)
def test_a_page_with_wrong_output_fails(page: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page, encoding="utf-8")
    with pytest.raises(AssertionError, match=message):
        Reader(path, tmp_path).run_page()


def test_the_blocks_of_a_page_run_in_order_and_share_their_state(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "```console\n$ echo one > file\n$ cat file \\\n>   file\none\n...\n$ make test\n```\n"
        "```python\nwith open('file') as file: text = file.read()\n```\nand then\n"
        "```python\nassert text == 'one\\n'\n```\n",
        encoding="utf-8",
    )
    Reader(path, tmp_path).run_page()


def test_blocks_for_make_soak_run_only_there(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"{ONLY_SOAK}\n```console\n$ touch long\n```\n\n```console\n$ touch short\n```\n")
    Reader(path, tmp_path).run_page()
    assert ((tmp_path / "short").exists(), (tmp_path / "long").exists()) == (True, False)
    Reader(path, tmp_path, soak=True).run_page()
    assert (tmp_path / "long").exists()


def test_a_page_writes_files_and_changes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "```console\n$ mkdir app\n$ cd app\n```\n```python app.py\nx = 1\n```\n```python >> app.py\ny = 2\n```\n"
        "```console\n$ python -c 'from app import x, y; print(x, y)'\n1 2\n```\n"
    )
    Reader(path, tmp_path).run_page()
    assert (tmp_path / "app" / "app.py").read_text() == "x = 1\ny = 2\n"


@pytest.mark.parametrize(
    ("expected", "printed", "does_match"),
    [
        (["a ... c"], "a b c\n", True),
        (["a", "...", "z"], "a\nb\nc\nz\n", True),
        (["a"], "a\nb\n", False),
        ([], "", True),
        ([], "a\n", False),
        (["a.c"], "abc\n", False),
    ],
)
def test_three_dots_match_any_text(expected: list[str], printed: str, does_match: bool) -> None:
    assert matches(expected, printed) is does_match


def test_a_failing_page_raises_an_assertion_error_with_the_line_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("words\n\n```console\n$ false\n```", encoding="utf-8")
    with pytest.raises(SnippetFailed, match=r"page\.md line 4"):
        Reader(path, tmp_path).run_page()
