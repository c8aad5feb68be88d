"""Every setting, and every field of the options built from settings, is read by at least one module."""

from __future__ import annotations

import ast
import dataclasses
from functools import cache
from pathlib import Path

import headrace
from headrace.flow.context import FlowOptions
from headrace.settings.definitions import definitions

SOURCE = Path(headrace.__file__).parent
HOLDERS = ("_options", "_settings", "settings", "options", "self")


@cache
def reads() -> set[str]:
    """The last two names (``owner.name``) of every attribute that is read outside of ``headrace.settings``."""
    reads_found = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "settings":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value
                if isinstance(owner, ast.Name | ast.Attribute):
                    reads_found.add(f"{owner.id if isinstance(owner, ast.Name) else owner.attr}.{node.attr}")
    return reads_found


def test_every_setting_is_read_by_some_module() -> None:
    read = reads()
    unread = {key for key in definitions() if not {key, f"settings.{key.rpartition('.')[2]}"} & read}
    assert unread == set()


def test_every_option_of_a_flow_is_used() -> None:
    used = {name for owner, _, name in (read.partition(".") for read in reads()) if owner in HOLDERS}
    assert {field.name for field in dataclasses.fields(FlowOptions)} - used == set()
