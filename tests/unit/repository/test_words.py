"""Names, docstrings and messages use the words of the field, not words of speech or names without a meaning.

The lists contain the frequent violations. A package is either clean or listed in ``TO_COME``, which only gets shorter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .source_tree import Module, modules, package_of
from .tracked import short, tracked_files

__all__ = ["violations"]

TO_COME: set[str] = set()
"""Packages whose words are still to be cleaned."""
NAMES_TO_COME: set[str] = {
    "tests.support",
}
"""Folders outside of the package whose functions and classes are still to be renamed. It only gets shorter."""
PAGES_TO_COME: set[str] = set()
"""Documentation pages that are still to be rewritten. It only gets shorter."""

# Forbidden parts of identifiers such as told_position, GroupAsker, asked_at.
NAME_PARTS = {
    *("told", "tell", "tells", "telling", "ask", "asks", "asked", "asker", "asking"),
    *("look", "looks", "looked", "looking", "standing", "standings", "troubles", "wish", "sitting"),
    *("place", "places", "somebody", "whoever", "nobody"),
}
# Variable names that do not describe the value.
VAGUE_NAMES = {"one", "ones", "another", "thing", "things", "there", "made", "given", "taken"}
# Names of the field, and of other libraries, that contain such a part.
ALLOWED = {"lookup", "look_up", "placeholder", "add_placeholder"}
# The name of a module or class is a noun. Of the words that end with "ing", only these are nouns of the field.
GERUND_NOUNS = {
    *(
        "finding",
        "string",
        "setting",
        "settings",
        "testing",
        "encoding",
        "framing",
        "listing",
        "binding",
        "recording",
        "ring",
    ),
}

PHRASES = re.compile(
    r"\b(?i:told|tells?|telling|asks?|asked|asking|whoever|wherever|nobody|somebody|says? so|said"
    r"|there (?:is|are|was|were)|(?:is|are|was|were) (?:not )?there|no longer there"
    r"|(?:goes|go|going|gone|went) on\b|let(?:s|ting)? go of|looks?|looked|looking"
    r"|(?:is|are) (?-i:none)|be had|mend|begun|aside|taken|given|made|at work)\b"
)
# The phrases that documentation pages must not use.
PROSE = re.compile(
    r"\b(?i:told|tells?|telling|asks?|asked|asking|whoever|somebody|(?:goes|go|going|gone|went) on"
    r"|let(?:s|ting)? go of|look(?:s|ed)? (?:at|through|again)|(?:is|are|was|were) (?:not )?there|no longer there"
    r"|(?:is|are) none|be had|begun|aside|at work)\b"
)
# In names of tests, "harms nobody" and "takes its place" are allowed.
TEST_NAME_PARTS = NAME_PARTS - {"nobody", "place", "places"}
# Texts for people are these arguments, and all strings in the call of a raise.
TEXT_ARGUMENTS = {"help", "hint", "detail", "empty", "reason"}
PRINTING = {"note", "warn"}


def _words(identifier: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier)]


def _is_gerund(word: str) -> bool:
    return word.endswith("ing") and len(word) > 5 and word not in GERUND_NOUNS


def _names(module: Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the name, and whether it names a class or a module."""
    yield 1, module.name.rpartition(".")[2], True
    for node in ast.walk(module.tree):
        match node:
            case ast.ClassDef():
                yield node.lineno, node.name, True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name, False
            case ast.arg():
                yield node.lineno, node.arg, False
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id, False
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr, False


def _texts(module: Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings, including those of attributes, and the texts of errors, help and notes."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
            case ast.Raise(exc=ast.Call() as call):
                yield from _strings([*call.args, *(keyword.value for keyword in call.keywords)])
            case ast.Call():
                yield from _strings([kw.value for kw in node.keywords if kw.arg in TEXT_ARGUMENTS])
                if isinstance(node.func, ast.Attribute) and node.func.attr in PRINTING:
                    yield from _strings(node.args)


def _strings(nodes: list[ast.expr]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def violations(module: Module) -> list[str]:
    where = short(module.path)
    messages = set()
    for line, name, is_noun in _names(module):
        words = _words(name)
        bare = name.strip("_")
        if bare in VAGUE_NAMES or (bare.lower() not in ALLOWED and NAME_PARTS & set(words)):
            messages.add(f"{where}:{line}: the name {name}")
        elif is_noun and words and _is_gerund(words[-1]):
            messages.add(f"{where}:{line}: the gerund {name}")
    for line, text in _texts(module):
        for match in PHRASES.finditer(text):
            messages.add(f"{where}:{line}: the words {match[0]!r} in {' '.join(text.split())[:80]!r}")
    return sorted(messages)


def test_only_existing_packages_are_listed() -> None:
    packages = {package_of(module) for module in modules().values() if module.name.startswith("headrace.")}
    assert packages >= TO_COME, f"no such package: {TO_COME - packages}"


@pytest.mark.parametrize(
    "package",
    sorted(
        {package_of(module) for module in modules().values() if module.name.startswith("headrace.")} - TO_COME
    ),
)
def test_names_and_messages_use_the_words_of_the_field(package: str) -> None:
    messages = [
        violation
        for module in modules().values()
        if package_of(module) == package
        for violation in violations(module)
    ]
    assert messages == []


def _folder_of(module: Module) -> str:
    """Return ``tests.wire``, ``tests.unit.broker``, ``faults.log``; for a module directly in ``faults``, its name."""
    parts = module.name.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["tests", "unit"] else 2])


def _defined_names(module: Module) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the name, and whether it names a class or a module (test files do not count as modules)."""
    stem = module.name.rpartition(".")[2]
    yield 1, stem, not stem.startswith("test_")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name, isinstance(node, ast.ClassDef)


def name_violations(module: Module) -> list[str]:
    messages = []
    for line, name, is_noun in _defined_names(module):
        words = _words(name)
        parts = TEST_NAME_PARTS if name.startswith("test_") else NAME_PARTS
        if name.strip("_") in VAGUE_NAMES or (name.strip("_") not in ALLOWED and parts & set(words)):
            messages.append(f"{short(module.path)}:{line}: the name {name}")
        elif is_noun and words and _is_gerund(words[-1]):
            messages.append(f"{short(module.path)}:{line}: the gerund {name}")
    return messages


_OTHER_MODULES = [module for module in modules().values() if not module.name.startswith("headrace")]


@pytest.mark.parametrize("folder", sorted({_folder_of(module) for module in _OTHER_MODULES} - NAMES_TO_COME))
def test_functions_and_classes_outside_of_the_package_use_the_words_of_the_field(folder: str) -> None:
    messages = [
        text for module in _OTHER_MODULES if _folder_of(module) == folder for text in name_violations(module)
    ]
    assert messages == []


def test_only_existing_folders_and_pages_are_listed() -> None:
    assert {_folder_of(module) for module in _OTHER_MODULES} >= NAMES_TO_COME
    assert {short(page) for page in _pages()} >= PAGES_TO_COME


def _pages() -> list[Path]:
    """Return all Markdown pages except those of vendored libraries."""
    return [path for path in tracked_files() if path.suffix == ".md" and "vendor" not in path.parts]


def prose_violations(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    # Replace code and generated tables by blank lines, so that line numbers stay correct.
    for code in (r"(?s)```.*?```", r"(?s)<!-- begin.*?<!-- end", r"`[^`]*`"):
        text = re.sub(code, lambda match: "\n" * match[0].count("\n"), text)
    return [
        f"{short(page)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for match in PROSE.finditer(text)
    ]


def test_pages_use_the_words_of_the_field() -> None:
    messages = [
        text for page in _pages() if short(page) not in PAGES_TO_COME for text in prose_violations(page)
    ]
    assert messages == []
