"""The tests that pages of the documentation show pass, in one Spark session for all of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.repository.snippets import blocks
from tools.paths import ROOT

PAGES = ("cookbook.md", "how-to/test-an-app.md", "tutorial.md")
_TEST_FILE = "python test_app.py"


def shown_tests(page: Path) -> dict[str, Any]:
    """Execute the code of the page, and return its test functions. The blocks of the file ``app.py`` are a module of
    this name for the block of its test file.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    app = ModuleType("app")
    for block in blocks(page.read_text(encoding="utf-8")):
        code = "\n" * (block.line - 1) + block.text
        if block.kind in ("python app.py", "python >> app.py"):
            exec(compile(code, str(page), "exec", dont_inherit=True), vars(app))
        elif block.kind in ("python", _TEST_FILE):
            sys.modules["app"] = app
            try:
                exec(compile(code, str(page), "exec", dont_inherit=True), namespace)
            finally:
                del sys.modules["app"]
    return {name: found for name, found in namespace.items() if name.startswith("test_")}


def _cases() -> Iterator[Any]:
    for name in PAGES:
        for test, function in shown_tests(ROOT / "docs" / name).items():
            yield pytest.param(function, id=f"{name}-{test}")


@pytest.mark.parametrize("test", list(_cases()))
def test_a_test_of_a_page_passes(test: Any, request: pytest.FixtureRequest) -> None:
    fixtures = inspect.signature(test).parameters
    test(**{fixture: request.getfixturevalue(fixture) for fixture in fixtures})
