"""The table of capabilities names tests that exist. That they pass is for the whole run to say: ``--capabilities``."""

from __future__ import annotations

import ast
import re

from tests.plugins.capabilities import TABLE, read_table

from .tracked import ROOT

CAPABILITIES = read_table((ROOT / TABLE).read_text(encoding="utf-8"))


def test_every_named_test_exists() -> None:
    absent = [test for row in CAPABILITIES for test in row.tests if not exists(test)]
    assert absent == []


def test_every_capability_has_its_number_once_and_a_test() -> None:
    numbers = [row.number for row in CAPABILITIES]
    assert len(numbers) == len(set(numbers))
    assert all(re.fullmatch(r"[MLCETFRVGI]\d+", number) for number in numbers)
    assert all(row.tests for row in CAPABILITIES)


def exists(test: str) -> bool:
    path, *names = test.split("::")
    if not (ROOT / path).is_file():
        return False
    nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for name in names:
        found = [
            node
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name
        ]
        if not found:
            return False
        nodes = found[0].body
    return True


def test_a_name_that_is_nowhere_does_not_exist() -> None:
    here = "tests/unit/repository/test_capabilities.py"
    assert exists(f"{here}::test_every_named_test_exists")
    assert not exists(f"{here}::test_nothing_of_the_kind")
    assert not exists("tests/unit/nowhere.py::test_every_named_test_exists")
