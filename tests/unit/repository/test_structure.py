"""The structure of the code: modules of a good size, few thin modules with a single importer, no import cycles."""

from __future__ import annotations

from .source_tree import Module, import_cycles, imports, modules
from .tracked import short

LINES_MIN, LINES_MAX = 100, 450
GOOD_SIZE_SHARE_MIN = 0.84
"""The minimum share of modules that have from ``LINES_MIN`` to ``LINES_MAX`` lines. Raise it when the share improves;
never lower it.
"""
TOO_LONG: set[str] = set()
"""Modules with more than ``LINES_MAX`` lines. The list only gets shorter."""
THIN_LINES_MAX = 40
THIN_MAX = 7
"""The maximum number of thin modules that only one other module imports. Lower it when some are merged; never raise it.
"""


def _package_modules() -> list[Module]:
    return [
        module
        for name, module in modules().items()
        if name.startswith("headrace.") and not module.is_package and not name.endswith("__main__")
    ]


def test_most_modules_hold_one_concept_of_a_good_size() -> None:
    sizes = [module.line_count for module in _package_modules()]
    share = sum(LINES_MIN <= size <= LINES_MAX for size in sizes) / len(sizes)
    assert share >= GOOD_SIZE_SHARE_MIN, "merge thin modules into the concept that they belong to"


def test_no_module_is_too_long() -> None:
    too_long = {short(module.path) for module in _package_modules() if module.line_count > LINES_MAX}
    assert too_long == TOO_LONG, "a longer module is usually two concepts"


def test_few_thin_modules_have_a_single_importer() -> None:
    importers: dict[str, set[str]] = {}
    for name in modules():
        if name.startswith("headrace"):
            for target in imports(name):
                importers.setdefault(target, set()).add(name)
    thin = [
        short(module.path)
        for module in _package_modules()
        if module.line_count < THIN_LINES_MAX and len(importers.get(module.name, ())) == 1
    ]
    assert len(thin) <= THIN_MAX, f"merge each of these into the module that imports it: {thin}"


def test_no_modules_import_each_other() -> None:
    assert import_cycles() == []
