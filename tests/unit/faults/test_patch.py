"""Patches of private parts of the product."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from faults.patch import patch, patched
from faults.servers.fork_server import ROOT
from faults.unprotected.registry import PROTECTIONS

_REMOVE_EACH = """
import os
from faults.unprotected.registry import PROTECTIONS

for name, remove in PROTECTIONS.items():
    pid = os.fork()
    if not pid:
        remove()
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Base:
    def inherited(self) -> int:
        return 1


class Child(Base):
    def own(self) -> int:
        return 2


def test_a_patch_replaces_an_attribute_until_the_block_ends() -> None:
    with patched(Child, "own", lambda self: 3):
        assert Child().own() == 3
    assert Child().own() == 2


@pytest.mark.parametrize(
    ("owner", "name"), [(Child, "renamed"), (Child, "inherited"), (Child, "__init__"), (ModuleType("m"), "x")]
)
def test_a_patch_of_an_attribute_that_the_owner_does_not_define_raises_an_error(
    owner: type, name: str
) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}' of its own"):
        patch(owner, name, None)


def test_every_protection_can_be_removed_from_the_current_code() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", _REMOVE_EACH],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(result.stdout.splitlines()) == sorted(f"{name} 0" for name in PROTECTIONS), result.stderr


def _imported(tree: ast.Module) -> dict[str, Any]:
    """Return the product's objects that the module, or a function in it, imports, by name."""
    owners: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                name = alias.asname or alias.name
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                owners[name] = getattr(module, alias.name)
    return owners


def _patches(path: Path) -> Iterator[tuple[Any, str]]:
    """The owner and the name of each patch call whose arguments are literals."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if "faults.patch" not in {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}:
        return
    owners = _imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="patch" | "patched"), args=[owner, ast.Constant(value=str(name)), *_]
            ):
                first, *rest = ast.unparse(owner).split(".")
                if first in owners:
                    target = owners[first]
                    for part in rest:
                        target = getattr(target, part)
                    yield target, name


@pytest.mark.parametrize(
    "path", sorted((ROOT / "faults").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_patched_attribute_exists(path: Path) -> None:
    missing = [f"{owner.__name__}.{name}" for owner, name in _patches(path) if name not in vars(owner)]
    assert missing == []
