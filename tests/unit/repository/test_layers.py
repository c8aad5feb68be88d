"""import-linter checks the layers in ``make check``. These tests check that it runs and covers every package."""

from __future__ import annotations

import re
import tomllib

from .tracked import ROOT

PACKAGE = ROOT / "src" / "headrace"


def test_every_part_of_the_package_has_its_layer() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    parts = {
        f"headrace.{path.stem}"
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and not path.stem.startswith("_")
    }
    assert parts == named


def test_the_checks_run_all_four_tools() -> None:
    recipe = re.search(
        r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert recipe is not None
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports"):
        assert tool in recipe.group(1)
