"""The tests that docs/how-to/test-an-app.md shows pass."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.unit.repository.snippets import blocks
from tools.paths import ROOT

PAGE = ROOT / "docs" / "how-to" / "test-an-app.md"


def shown_tests() -> dict[str, Any]:
    """Execute the code of the page, and return the test functions that it defines."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.kind == "python":
            exec(compile(block.text, str(PAGE), "exec", dont_inherit=True), namespace)
    return {name: found for name, found in namespace.items() if name.startswith("test_")}


TESTS = shown_tests()


@pytest.mark.parametrize("name", TESTS)
def test_a_test_of_the_page_passes(name: str, request: pytest.FixtureRequest) -> None:
    fixtures = inspect.signature(TESTS[name]).parameters
    TESTS[name](**{fixture: request.getfixturevalue(fixture) for fixture in fixtures})
