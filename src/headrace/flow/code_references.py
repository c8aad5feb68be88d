"""The names that a function's instructions read: global variables, the attributes that follow them, and imports."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

__all__ = ["Reference", "closure_line", "line_naming", "references"]

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NO_WORK = frozenset({"CACHE", "EXTENDED_ARG"})


@dataclass(frozen=True, slots=True)
class Reference:
    name: str
    attributes: tuple[str, ...]
    """``settings.limits.RATE`` has two."""
    line: int
    is_import: bool = False
    level: int = 0
    """Of a relative import: the number of its dots."""

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
            level, names = instructions[at - 2].argval, instructions[at - 1].argval
            for name in names or ("",):
                yield Reference(instruction.argval, (name,) if name else (), line, True, level)


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


def _attributes(instructions: list[dis.Instruction], at: int) -> tuple[str, ...]:
    names: list[str] = []
    for instruction in instructions[at + 1 :]:
        if instruction.opname not in _ATTRIBUTES:
            break
        names.append(instruction.argval)
    return tuple(names)


def _all(code: CodeType) -> Iterator[tuple[CodeType, dis.Instruction]]:
    for instruction in _instructions(code):
        yield code, instruction
        if isinstance(instruction.argval, CodeType):
            yield from _all(instruction.argval)


def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [one for one in dis.get_instructions(code) if one.opname not in _NO_WORK]


def _line(code: CodeType, instruction: dis.Instruction) -> int:
    positions = instruction.positions
    return (positions.lineno if positions else None) or code.co_firstlineno
