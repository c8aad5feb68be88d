"""Evaluates a CEL (Common Expression Language) expression on a record.

The result is true, false, or an error, for example if the expression reads a field that the record does not have. The
expression can use these names:

    key                  text if it is UTF-8, otherwise bytes; null if the record has no key
    value                decoded if it is JSON, otherwise text or bytes; null if the record has no value
    text                 the raw value as text; null if it is not UTF-8
    headers              a map by name
    time, timestamp      the record's timestamp
    partition, offset    where the record is in the topic
    size                 size of the value in bytes; the function size(text) also exists

CEL can loop only over data of the record and has no side effects. The process in which it runs limits its time and
memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from headrace.model.errors import MissingExtra
from headrace.serve.errors import InvalidExpression

__all__ = ["VARIABLES", "WHERE_CHARS_MAX", "Where"]

WHERE_CHARS_MAX = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCATION = re.compile(r"<input>:([0-9]+):([0-9]+): ([^\n]*)")
_LOOP_VARIABLE = re.compile(
    r"\.(?:all|exists|exists_one|existsOne|map|filter)\(\s*([A-Za-z_][A-Za-z0-9_]*)\s*,"
)
_FUNCTIONS = frozenset(
    (
        *("size", "contains", "startsWith", "endsWith", "matches", "has", "type", "dyn"),
        *("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration"),
        *("all", "exists", "exists_one", "existsOne", "map", "filter"),
        *("getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours"),
        *("getMilliseconds", "getMinutes", "getMonth", "getSeconds"),
    )
)
_FUNCTION_HINT = (
    "text has the functions contains, startsWith, endsWith, matches and size; matches('(?i)...') ignores case"
)
_TYPES = frozenset(
    ("bool", "bytes", "double", "duration", "int", "list", "map", "null_type", "string", "timestamp", "uint")
)


def _value(message: Any) -> Any:
    raw = message.value()
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _text_or_bytes(raw)


def _text_or_bytes(raw: bytes | str | None) -> str | bytes | None:
    if raw is None or isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _text(message: Any) -> str | None:
    value = _text_or_bytes(message.value())
    return value if isinstance(value, str) else None


def _time(message: Any) -> datetime | None:
    kind, stamp = message.timestamp()
    try:
        return _EPOCH + timedelta(milliseconds=stamp) if kind else None
    except OverflowError:
        return None


VARIABLES: Mapping[str, Callable[[Any], Any]] = {
    "key": lambda message: _text_or_bytes(message.key()),
    "value": _value,
    "text": _text,
    "headers": lambda message: {name: _text_or_bytes(raw) for name, raw in message.headers() or ()},
    "time": _time,
    "timestamp": _time,
    "partition": lambda message: message.partition(),
    "offset": lambda message: message.offset(),
    "size": lambda message: len(message.value() or b""),
}


class Where:
    """A parsed expression. Raises InvalidExpression, with line and column, if it is invalid."""

    def __init__(self, text: str) -> None:
        if len(text) > WHERE_CHARS_MAX:
            raise InvalidExpression(f"the expression in where has more than {WHERE_CHARS_MAX} characters")
        try:
            self._program = _engine().compile(text)
        except ValueError as error:
            raise _invalid(str(error)) from None
        references = self._program.references()
        bound = {*_LOOP_VARIABLE.findall(text), *_TYPES}
        for name in references["variables"]:
            if name not in VARIABLES and name not in bound:
                raise _unknown(text, name, f"unknown name {name!r}", f"the names are {', '.join(VARIABLES)}")
        for name in references["functions"]:
            if name.isidentifier() and name not in _FUNCTIONS:
                raise _unknown(text, name, f"unknown function {name!r}", _FUNCTION_HINT)
        self._variables = [(name, VARIABLES[name]) for name in references["variables"] if name in VARIABLES]

    def matches(self, message: Any) -> bool | None:
        """Evaluate the expression. Return None if the evaluation fails or the result is not a boolean."""
        try:
            result = self._program.execute({name: read(message) for name, read in self._variables})
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except (
            BaseException
        ):  # A panic of the CEL engine is not an Exception. A panic must not end the search.
            return None
        return result if isinstance(result, bool) else None


def _invalid(error: str) -> InvalidExpression:
    match = _LOCATION.search(error)
    line, column, what = (int(match[1]), int(match[2]), match[3]) if match else (1, 1, error[:200])
    return _at(
        line, column, what.removeprefix("Syntax error: ")[:200], "for example: value.amount > 5 && key == 'a'"
    )


def _unknown(text: str, name: str, what: str, hint: str) -> InvalidExpression:
    occurrence = re.search(rf"(?<![\w.]){re.escape(name)}\b", text) or re.search(
        rf"\b{re.escape(name)}\b", text
    )
    before = text[: occurrence.start()] if occurrence else ""
    return _at(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1, what, hint)


def _at(line: int, column: int, what: str, hint: str) -> InvalidExpression:
    return InvalidExpression(
        f"error in where at {line}:{column}: {what}", hint=hint, members={"line": line, "column": column}
    )


def _engine() -> ModuleType:
    """Load only the extension module. The package also imports its command line, which takes longer than a search."""
    package = find_spec("cel")
    for folder in (package and package.submodule_search_locations) or ():
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder) / f"cel{suffix}"
            if path.is_file():
                loader = ExtensionFileLoader("cel.cel", str(path))
                # The extension can be initialized only once per process.
                module = sys.modules.get(loader.name)
                if module is None:
                    module = module_from_spec(ModuleSpec(loader.name, loader, origin=str(path)))
                    loader.exec_module(module)
                    sys.modules[loader.name] = module
                return module
    raise MissingExtra(
        "searching with an expression needs common-expression-language, which is not installed",
        hint="install it: pip install 'headrace[serve]'",
    )
