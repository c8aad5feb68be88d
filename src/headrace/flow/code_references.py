"""The names that a function's instructions read: global variables, the attributes that follow them, and imports."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

__all__ = ["Reference", "attributes_read", "closure_line", "line_naming", "references"]

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NO_WORK = frozenset({"CACHE", "EXTENDED_ARG"})
_VARIABLES = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_NAME"})
_OF_AN_IMPORT = frozenset({"IMPORT_FROM", "SWAP", "POP_TOP"})


@dataclass(frozen=True, slots=True)
class Reference:
    name: str
    attributes: tuple[str, ...]
    """``settings.limits.RATE`` has two."""
    line: int
    is_import: bool = False
    level: int = 0
    """Of a relative import: the number of its dots."""
    bound: str = ""
    """The local variable that an import assigns."""

    def __str__(self) -> str:
        return ".".join((self.name, *self.attributes))


def references(code: CodeType) -> Iterator[Reference]:
    """Those of ``code`` itself; code inside it, such as a lambda, has its own."""
    instructions = _instructions(code)
    for at, instruction in enumerate(instructions):
        line = _line(code, instruction)
        if instruction.opname in _GLOBALS:
            yield Reference(instruction.argval, _attributes(instructions, at), line)
        elif instruction.opname == "IMPORT_NAME":
            yield from _imports(instructions, at, line)


def attributes_read(code: CodeType, variable: str) -> Iterator[tuple[str, ...]]:
    """One tuple of attribute names for each read of a local variable or closure, nested code included. An empty tuple
    means that the value itself is used: passed to a call, stored in a container or in another variable.
    """
    for each in _codes(code):
        instructions = _instructions(each)
        for at, instruction in enumerate(instructions):
            first, last = _variables(each, instruction)
            if first == variable:
                yield ()
            if last == variable:
                yield _attributes(instructions, at)


def closure_line(code: CodeType, name: str) -> int:
    """Where it reads a variable of the function around it."""
    return next(
        (_line(each, one) for each, one in _all(code) if "DEREF" in one.opname and one.argval == name),
        code.co_firstlineno,
    )


def line_naming(code: CodeType, name: str) -> int | None:
    """Where it first names something, as a global, an attribute, or in a text such as one of SQL."""
    for each, one in _all(code):
        is_name = one.opname in _GLOBALS | _ATTRIBUTES and one.argval == name
        if is_name or (one.opname == "LOAD_CONST" and isinstance(one.argval, str) and name in one.argval):
            return _line(each, one)
    return None


def _variables(code: CodeType, instruction: dis.Instruction) -> tuple[str, str]:
    """The local variables that an instruction reads. Some read two, or store one and read another."""
    if instruction.opname in _VARIABLES:
        return "", instruction.argval
    if "LOAD_FAST" not in instruction.opname:
        return "", ""
    named = instruction.argval if isinstance(instruction.argval, tuple) else ("", instruction.argval)
    # For a variable shared with nested code this loads the cell. Its value is read by LOAD_DEREF.
    shared = {*code.co_cellvars, *code.co_freevars}
    first, last = ("" if name in shared else name for name in named)
    return "" if instruction.opname.startswith("STORE") else first, last


def _imports(instructions: list[dis.Instruction], at: int, line: int) -> Iterator[Reference]:
    """``import a.b`` assigns ``a``. With ``as`` or ``from`` the variable gets the named module or attribute."""
    name, level, names = instructions[at].argval, instructions[at - 2].argval, instructions[at - 1].argval
    bound: list[str] = []
    is_renamed = False
    for instruction in instructions[at + 1 :]:
        if instruction.opname.startswith("STORE_"):
            stored = instruction.argval[0] if isinstance(instruction.argval, tuple) else instruction.argval
            bound.append("" if instruction.opname == "STORE_GLOBAL" else stored)
            if len(bound) == len(names or (1,)):
                break
        elif instruction.opname in _OF_AN_IMPORT:
            is_renamed = True
        else:
            break
    if names:
        for imported, variable in zip(names, [*bound, *[""] * len(names)], strict=False):
            yield Reference(name, (imported,), line, True, level, variable)
    else:
        root = name if is_renamed else name.partition(".")[0]
        yield Reference(root, (), line, True, level, "".join(bound))


def _attributes(instructions: list[dis.Instruction], at: int) -> tuple[str, ...]:
    names: list[str] = []
    for instruction in instructions[at + 1 :]:
        if instruction.opname not in _ATTRIBUTES:
            break
        names.append(instruction.argval)
    return tuple(names)


def _all(code: CodeType) -> Iterator[tuple[CodeType, dis.Instruction]]:
    for each in _codes(code):
        for instruction in _instructions(each):
            yield each, instruction


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and those inside it: lambdas, comprehensions, functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [one for one in dis.get_instructions(code) if one.opname not in _NO_WORK]


def _line(code: CodeType, instruction: dis.Instruction) -> int:
    positions = instruction.positions
    return (positions.lineno if positions else None) or code.co_firstlineno
