"""Every app on the documentation pages passes the checks of ``headrace check``: declarations, and flows on Spark."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.app import App
from headrace.model.errors import AppError
from headrace.runtime.check import compile_mistakes, declaration_mistakes
from tests.unit.repository.snippets import blocks, commands
from tests.unit.repository.tracked import short, tracked_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORTS_APP = re.compile(r"^(?:> )?from headrace import .*\bApp\b", re.MULTILINE)
_DECLARES_AN_APP = re.compile(r"\.py\"\)\.(?:write_text|open)\(|App\(")
PAGES = [
    path
    for path in tracked_files()
    if path.suffix == ".md" and _IMPORTS_APP.search(path.read_text(encoding="utf-8"))
]


def apps_of(page: Path, folder: Path) -> Iterator[App]:
    """Yield the apps that a reader of the page has declared. Commands are not run, except those that write a module."""
    namespace: dict[str, Any] = {"__name__": "page"}
    texts: dict[Path, str] = {}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.kind == "python" and _DECLARES_AN_APP.search(block.text):
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
            with contextlib.chdir(folder):
                exec(code, namespace)
        for command in commands(block) if block.kind == "console" else ():
            if re.match(r"cat > \w+\.py <<", command.text):
                subprocess.run(["bash", "-euc", command.text], cwd=folder, check=True)
        # A page can declare several apps under the same name, or change a module.
        for name in [name for name, value in namespace.items() if isinstance(value, App)]:
            yield namespace.pop(name)
        for path in sorted(folder.glob("*.py")):
            if texts.get(path) != (text := path.read_text(encoding="utf-8")):
                texts[path] = text
                yield from apps_in(path)


def apps_in(path: Path) -> Iterator[App]:
    module = types.ModuleType(f"page_{path.stem}")
    # A dataclass finds the types of its fields in the module of its class.
    sys.modules[module.__name__] = module
    try:
        code = compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
        exec(code, vars(module))
        yield from (value for value in vars(module).values() if isinstance(value, App))
    finally:
        del sys.modules[module.__name__]


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_app_of_a_page_has_no_mistakes(page: Path, tmp_path: Path, spark: SparkSession) -> None:
    mistakes: list[AppError] = []
    count = 0
    for app in apps_of(page, tmp_path):
        count += 1
        mistakes += declaration_mistakes(app, set())
        if app.flows:
            mistakes += compile_mistakes(app, spark, set())
    assert count, "the page declares an app"
    assert mistakes == []


def test_the_pages_with_apps_are_found() -> None:
    assert {"README.md", "docs/apps.md", "docs/how-to/change-a-schema.md"} <= set(map(short, PAGES))
