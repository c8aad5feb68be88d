"""The table of capabilities names tests that exist. ``--capabilities`` checks that they pass."""

from __future__ import annotations

import ast
import re

from tests.plugins.capabilities import TABLE, read_table

from .tracked import ROOT

CAPABILITIES = read_table((ROOT / TABLE).read_text(encoding="utf-8"))


def test_every_named_test_exists() -> None:
    absent = [
        test
        for row in CAPABILITIES
        for test in (*row.tests, *row.soak_tests)
        if find_definition(test) is None
    ]
    assert absent == []


def test_the_table_marks_exactly_the_tests_of_make_soak() -> None:
    wrong = [
        test
        for row in CAPABILITIES
        for named, is_soak in ((row.tests, False), (row.soak_tests, True))
        for test in named
        if (node := find_definition(test)) is not None and has_soak_mark(node) != is_soak
    ]
    assert wrong == [], "write (make soak) after exactly the tests that are marked with pytest.mark.soak"


def test_every_capability_has_its_number_once_and_a_test() -> None:
    numbers = [row.number for row in CAPABILITIES]
    assert len(numbers) == len(set(numbers))
    assert all(re.fullmatch(r"[MLCETFRVGI]\d+", number) for number in numbers)
    assert all(row.tests or row.soak_tests for row in CAPABILITIES)


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def find_definition(test: str) -> Definition | None:
    """Return the definition of the test that ``path::name`` names, or None."""
    path, *names = test.split("::")
    if not (ROOT / path).is_file():
        return None
    nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    definition = None
    for name in names:
        definition = next(
            (node for node in nodes if isinstance(node, Definition) and node.name == name), None
        )
        if definition is None:
            return None
        nodes = definition.body
    return definition


def has_soak_mark(definition: Definition) -> bool:
    return any("pytest.mark.soak" in ast.unparse(decorator) for decorator in definition.decorator_list)


def test_a_test_that_is_not_defined_is_not_found() -> None:
    here = "tests/unit/repository/test_capabilities.py"
    assert find_definition(f"{here}::test_every_named_test_exists") is not None
    assert find_definition(f"{here}::test_nothing_of_the_kind") is None
    assert find_definition("tests/unit/nowhere.py::test_every_named_test_exists") is None
