"""Generates the module lists in docs/architecture from the docstrings of the modules. Run ``python -m
tools.architecture``.

Each page describes one package. Its last section, ``## Modules``, has one line per module. Everything before it is
written by hand. ``tests/unit/repository/test_architecture.py`` checks that all file names on the pages exist.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

__all__ = ["PAGES", "listed_modules", "modules_of", "named_files", "package_dir", "render"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headrace"
PAGES = ROOT / "docs" / "architecture"
_SINGLE_MODULES_PAGE = "settings"
"""This page also lists the modules directly in ``src/headrace``."""
_HEADING = "## Modules\n"
_LINE = re.compile(r"(?m)^- `([\w/]+\.py)`")
_FILE = re.compile(r"`([\w/.-]+\.(?:py|js|c|shape))`")


def package_dir(page: Path) -> Path:
    return PACKAGE / page.stem


def modules_of(page: Path) -> list[Path]:
    """Return the modules that the page must list: all modules of its package. An ``__init__.py`` is included only if it
    defines a function or a class.
    """
    paths = [path for path in sorted(package_dir(page).rglob("*.py")) if _defines_something(path)]
    if page.stem == _SINGLE_MODULES_PAGE:
        paths += [path for path in sorted(PACKAGE.glob("*.py")) if _defines_something(path)]
    return paths


def _defines_something(path: Path) -> bool:
    if path.name != "__init__.py":
        return True
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)


def listed_modules(page: Path) -> list[str]:
    """Return the paths in the list at the end of the page, relative to ``src/headrace``."""
    return _LINE.findall(page.read_text(encoding="utf-8").partition(_HEADING)[2])


def named_files(text: str) -> set[str]:
    """Return every file name in backticks in the text."""
    return set(_FILE.findall(text))


def render(page: Path) -> str:
    text, _, _ = page.read_text(encoding="utf-8").partition(_HEADING)
    paths = sorted(modules_of(page), key=lambda path: (path.parent, path.name))
    folders = {path.parent for path in paths}
    lines = [text + _HEADING]
    folder = None
    for path in paths:
        if path.parent != folder:
            folder = path.parent
            heading = f"\n### {folder.relative_to(PACKAGE.parent).as_posix()}\n" if len(folders) > 1 else ""
            lines.append(f"{heading}\n")
        line = f"- `{path.relative_to(PACKAGE).as_posix()}`: {_summary(path)}"
        lines.append(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n")
    return "".join(lines)


def _summary(path: Path) -> str:
    """Return the first paragraph of the docstring. If the paragraph is long, return only its first sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split()).replace("``", "`")
    if len(paragraph) > 160:
        paragraph = paragraph.partition(". ")[0].rstrip(".") + "."
    return paragraph.removesuffix(":") or "no description."


def main() -> None:
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(render(page), encoding="utf-8")


if __name__ == "__main__":
    main()
