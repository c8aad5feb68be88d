"""Finds the names that a function's bytecode reads: global variables with their attributes, and imports. Also resolves
them, and decides which code is the user's own.
"""

from __future__ import annotations

import contextlib
import dis
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = [
    "OwnCode",
    "Reference",
    "attribute_of",
    "attributes_read",
    "closure_line",
    "first_line_using",
    "imported_module",
    "is_exported",
    "references",
]

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_PSEUDO_OPS = frozenset({"CACHE", "EXTENDED_ARG"})
_VARIABLES = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_NAME"})
_IMPORT_ALIAS_OPS = frozenset({"IMPORT_FROM", "SWAP", "POP_TOP"})
_SITE_FOLDERS = ("site-packages", "dist-packages")
_INSTALLED = tuple(
    str(path) + os.sep
    for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
)


@dataclass(frozen=True, slots=True)
class Reference:
    name: str
    attributes: tuple[str, ...]
    """The attributes after the name: ``settings.limits.RATE`` has two."""
    line: int
    is_import: bool = False
    level: int = 0
    """The number of dots of a relative import."""
    bound: str = ""
    """The local variable that an import assigns."""

    def __str__(self) -> str:
        return ".".join((self.name, *self.attributes))


def references(code: CodeType) -> Iterator[Reference]:
    """Yield the references of ``code``, without those of nested code such as a lambda."""
    instructions = _instructions(code)
    for at, instruction in enumerate(instructions):
        line = _line(code, instruction)
        if instruction.opname in _GLOBALS:
            yield Reference(instruction.argval, _attributes(instructions, at), line)
        elif instruction.opname == "IMPORT_NAME":
            yield from _imports(instructions, at, line)


def attributes_read(code: CodeType, variable: str) -> Iterator[tuple[str, ...]]:
    """Yield one tuple of attribute names for each read of a local variable or closure, including nested code.

    An empty tuple means that the value itself is used: passed to a call, or stored in a container or another variable.
    """
    for nested_code in _codes(code):
        instructions = _instructions(nested_code)
        for at, instruction in enumerate(instructions):
            first, last = _variables(nested_code, instruction)
            if first == variable:
                yield ()
            if last == variable:
                yield _attributes(instructions, at)


def closure_line(code: CodeType, name: str) -> int:
    """Return the line that reads a variable of the enclosing function."""
    return next(
        (
            _line(nested_code, instruction)
            for nested_code, instruction in _all_instructions(code)
            if "DEREF" in instruction.opname and instruction.argval == name
        ),
        code.co_firstlineno,
    )


def first_line_using(code: CodeType, name: str) -> int | None:
    """Return the first line that uses the name as a global, as an attribute, or in a string such as SQL."""
    for nested_code, instruction in _all_instructions(code):
        is_name = instruction.opname in _GLOBALS | _ATTRIBUTES and instruction.argval == name
        if is_name or (
            instruction.opname == "LOAD_CONST"
            and isinstance(instruction.argval, str)
            and name in instruction.argval
        ):
            return _line(nested_code, instruction)
    return None


def _variables(code: CodeType, instruction: dis.Instruction) -> tuple[str, str]:
    """Return the local variables that an instruction reads: two, one or none. Some instructions store one variable and
    then read another.
    """
    if instruction.opname in _VARIABLES:
        return "", instruction.argval
    if "LOAD_FAST" not in instruction.opname:
        return "", ""
    named = instruction.argval if isinstance(instruction.argval, tuple) else ("", instruction.argval)
    # For a variable that is shared with nested code, this instruction loads only its cell, not its value.
    shared = {*code.co_cellvars, *code.co_freevars}
    first, last = ("" if name in shared else name for name in named)
    return "" if instruction.opname.startswith("STORE") else first, last


def _imports(instructions: list[dis.Instruction], at: int, line: int) -> Iterator[Reference]:
    """Yield the references of an import. ``import a.b`` assigns ``a``; with ``as`` or ``from``, an import assigns the
    names that it lists.
    """
    name, level, names = instructions[at].argval, instructions[at - 2].argval, instructions[at - 1].argval
    bound_names: list[str] = []
    is_renamed = False
    for instruction in instructions[at + 1 :]:
        if instruction.opname.startswith("STORE_"):
            stored = instruction.argval[0] if isinstance(instruction.argval, tuple) else instruction.argval
            bound_names.append("" if instruction.opname == "STORE_GLOBAL" else stored)
            if len(bound_names) == len(names or (1,)):
                break
        elif instruction.opname in _IMPORT_ALIAS_OPS:
            is_renamed = True
        else:
            break
    if names:
        for imported, variable in zip(names, [*bound_names, *[""] * len(names)], strict=False):
            yield Reference(name, (imported,), line, True, level, variable)
    else:
        root = name if is_renamed else name.partition(".")[0]
        yield Reference(root, (), line, True, level, "".join(bound_names))


def _attributes(instructions: list[dis.Instruction], at: int) -> tuple[str, ...]:
    names: list[str] = []
    for instruction in instructions[at + 1 :]:
        if instruction.opname not in _ATTRIBUTES:
            break
        names.append(instruction.argval)
    return tuple(names)


def _all_instructions(code: CodeType) -> Iterator[tuple[CodeType, dis.Instruction]]:
    for nested_code in _codes(code):
        for instruction in _instructions(nested_code):
            yield nested_code, instruction


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code and its nested code: lambdas, comprehensions, functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [
        instruction for instruction in dis.get_instructions(code) if instruction.opname not in _PSEUDO_OPS
    ]


def _line(code: CodeType, instruction: dis.Instruction) -> int:
    positions = instruction.positions
    return (positions.lineno if positions else None) or code.co_firstlineno


def imported_module(reference: Reference, function: FunctionType) -> ModuleType | None:
    name = "." * reference.level + reference.name
    try:
        if reference.level:
            name = importlib.util.resolve_name(name, str(function.__globals__.get("__package__") or ""))
        return importlib.import_module(name)
    except ImportError:
        return None


def attribute_of(referenced: Any, name: str) -> Any:
    """Return an attribute; None if it does not exist. Imports a submodule that is not loaded yet."""
    if (
        isinstance(referenced, ModuleType)
        and not hasattr(referenced, name)
        and hasattr(referenced, "__path__")
    ):
        with contextlib.suppress(ImportError):
            return importlib.import_module(f"{referenced.__name__}.{name}")
    return getattr(referenced, name, None)


def is_exported(function: FunctionType) -> bool:
    """Whether the function's qualified name refers to it. If not, its package created it at run time."""
    referenced: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        referenced = getattr(referenced, name, None)
    return referenced is function


@dataclass(frozen=True, slots=True)
class OwnCode:
    """Distinguishes the user's own code from the code of installed packages."""

    home_path: str
    """The directory or file of the package of the flow's function. It is the user's code even if it is installed."""

    @classmethod
    def of(cls, function: Any) -> OwnCode:
        while not isinstance(function, FunctionType):
            # A partial function, a method or a callable object.
            inner = getattr(function, "func", None) or getattr(function, "__func__", None)
            function = inner or type(function).__call__
        package = sys.modules.get(function.__module__.partition(".")[0])
        folders = list(getattr(package, "__path__", ()))
        return cls(folders[0] + os.sep if folders else function.__code__.co_filename)

    def has_function(self, function: FunctionType) -> bool:
        """Check the file, not the module: a package's wrapper has the module name of the function that it wraps."""
        file = function.__code__.co_filename
        # Generated code, such as the methods of a dataclass, has no file.
        return self._has_name(function.__module__) if file.startswith("<") else self._has_file(file)

    def has_class(self, class_: type) -> bool:
        return self._has_name(class_.__module__)

    def has_module(self, module: ModuleType) -> bool:
        return self._has_name(module.__name__)

    def _has_name(self, name: str | None) -> bool:
        root = (name or "").partition(".")[0]
        file = getattr(sys.modules.get(name or ""), "__file__", None)
        return root not in sys.stdlib_module_names and (file is None or self._has_file(file))

    def _has_file(self, file: str) -> bool:
        is_installed = file.startswith(_INSTALLED) or any(part in file for part in _SITE_FOLDERS)
        return not is_installed or file.startswith(self.home_path)
