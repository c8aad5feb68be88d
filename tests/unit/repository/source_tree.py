"""The project's Python modules, parsed once for all checks of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from .tracked import ROOT, tracked_files

__all__ = ["Module", "import_cycles", "imports", "modules", "package_of"]

_FOLDERS = ("src", "tests", "bench", "faults", "examples", "tools")


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    text: str

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def line_count(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


@cache
def modules() -> dict[str, Module]:
    """Return all modules by their dotted names."""
    by_name = {}
    for path in tracked_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if path.suffix != ".py" or parts[0] not in _FOLDERS:
            continue
        parts = parts[1:] if parts[0] == "src" else parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        by_name[name] = Module(name, path, path.read_text(encoding="utf-8"))
    return by_name


def package_of(module: Module) -> str:
    """Return ``headrace.broker`` for every module below it; for a module directly in ``headrace``, its own name."""
    return ".".join(module.name.split(".")[:2])


@cache
def imports(name: str) -> frozenset[str]:
    """Return the project's modules that are imported when this module is imported."""
    module = modules()[name]
    package = name if module.is_package else name.rpartition(".")[0]
    imported: set[str] = set()
    for statement in _executed_imports(module.tree.body):
        if isinstance(statement, ast.Import):
            imported.update(alias.name for alias in statement.names if alias.name in modules())
            continue
        base = statement.module or ""
        if statement.level:
            parents = package.split(".")
            parents = parents[: len(parents) - statement.level + 1]
            base = ".".join([*parents, base] if base else parents)
        for alias in statement.names:
            submodule = f"{base}.{alias.name}"
            is_compiled = (ROOT / "src" / submodule.replace(".", "/")).with_suffix(".pyi").is_file()
            if not is_compiled:
                imported.add(submodule if submodule in modules() else base)
    return frozenset(imported & modules().keys() - {name})


def _executed_imports(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports outside of functions and of ``if TYPE_CHECKING``."""
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                yield statement
            case ast.If():
                if "TYPE_CHECKING" not in ast.unparse(statement.test):
                    yield from _executed_imports(statement.body)
                yield from _executed_imports(statement.orelse)
            case ast.Try():
                for part in (statement.body, statement.orelse, statement.finalbody):
                    yield from _executed_imports(part)
                for handler in statement.handlers:
                    yield from _executed_imports(handler.body)
            case ast.With() | ast.ClassDef():
                yield from _executed_imports(statement.body)


def import_cycles() -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm without recursion."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    cycles: list[list[str]] = []
    for root in modules():
        if root in order:
            continue
        work = [(root, iter(sorted(imports(root))))]
        order[root] = lowest[root] = len(order)
        open_modules.append(root)
        while work:
            name, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    open_modules.append(target)
                    work.append((target, iter(sorted(imports(target)))))
                    break
                if target in open_modules:
                    lowest[name] = min(lowest[name], order[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[name])
                if lowest[name] == order[name]:
                    at = open_modules.index(name)
                    group, open_modules[at:] = sorted(open_modules[at:]), []
                    if len(group) > 1:
                        cycles.append(group)
    return cycles
