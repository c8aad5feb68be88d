"""No setting is there for nothing: somebody reads each of them, and each field of what is made of them."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import headrace
from headrace.flow.options import FlowOptions
from headrace.settings.known import known

SOURCE = Path(headrace.__file__).parent
HOLDERS = ("_settings", "settings", "options", "self")


def reads() -> set[str]:
    """``owner.name`` of every attribute that is read outside of the settings themselves, by its last two names."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "settings":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                if isinstance(owner, ast.Name | ast.Attribute):
                    found.add(f"{owner.id if isinstance(owner, ast.Name) else owner.attr}.{node.attr}")
    return found


def test_every_setting_is_read_by_somebody() -> None:
    wanted = {key if "." in key else f"settings.{key}" for key in known()}
    assert wanted - reads() == set()


def test_every_option_of_a_flow_is_used() -> None:
    used = {name for owner, _, name in (one.partition(".") for one in reads()) if owner in HOLDERS}
    assert {field.name for field in dataclasses.fields(FlowOptions)} - used == set()
