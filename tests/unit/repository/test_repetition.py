"""Counts passages of code that occur twice in the package. Each should be one function that both places call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source_tree import Module, modules
from .tracked import short

PASSAGE_LINES = 8
"""Lines of code; blank lines, comments, docstrings and imports do not count."""
PASSAGES_MAX = 22
"""The number of repeated passages. Lower it when some are merged; never raise it."""


def _code_lines(module: Module) -> Iterator[tuple[int, str]]:
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(module.text.splitlines(), 1):
        text = line.strip()
        # Lines with only brackets do not make two passages similar.
        if number not in skipped and not text.startswith("#") and any(char.isalnum() for char in text):
            yield number, text


def repeated_passages() -> list[str]:
    """Return the pairs of locations that share at least ``PASSAGE_LINES`` lines; a longer passage counts once."""
    first_locations: dict[tuple[str, ...], tuple[str, int]] = {}
    last_index: dict[tuple[str, str], int] = {}
    pairs = []
    for name, module in modules().items():
        if not name.startswith("headrace"):
            continue
        lines = list(_code_lines(module))
        for index in range(len(lines) - PASSAGE_LINES + 1):
            passage = tuple(text for _, text in lines[index : index + PASSAGE_LINES])
            location = (short(module.path), lines[index][0])
            first_location = first_locations.setdefault(passage, location)
            if first_location == location:
                continue
            pair = (first_location[0], location[0])
            # The next window of the same passage is not another passage.
            if last_index.get(pair) != index - 1:
                pairs.append(f"{first_location[0]}:{first_location[1]} and {location[0]}:{location[1]}")
            last_index[pair] = index
    return pairs


def test_the_number_of_repeated_passages_does_not_grow() -> None:
    pairs = repeated_passages()
    assert len(pairs) <= PASSAGES_MAX, pairs
