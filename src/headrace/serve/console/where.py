"""An expression in CEL of a record: true, false, or neither, where it asks for what the record does not have.

    key, value, text     text where they are UTF-8, bytes otherwise; a value that is JSON is what it says, and text is
                         the value as it is written; null where there is none
    headers              by name
    time, timestamp      when it was written
    partition, offset    where it lies
    size                 bytes of the value; as a function, size(text) is the bytes of a text too

CEL has no loops but those over what a record has, no names but these, and nothing that reaches out of it. How long an
evaluation takes, and how much memory, is for the process to bound in which it runs.
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

from headrace.model.extras import ExtraMissing
from headrace.serve.console.errors import WhereUnfit

__all__ = ["VARIABLES", "WHERE_CHARS_MAX", "Where"]

WHERE_CHARS_MAX = 2_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE = re.compile(r"<input>:([0-9]+):([0-9]+): ([^\n]*)")
_BOUND = re.compile(r"\.(?:all|exists|exists_one|existsOne|map|filter)\(\s*([A-Za-z_][A-Za-z0-9_]*)\s*,")
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
    "texts have contains, startsWith, endsWith, matches and size; matches('(?i)...') does not look at case"
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
    found = _text_or_bytes(message.value())
    return found if isinstance(found, str) else None


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
    """Raises WhereUnfit, with the place, for what cannot be read."""

    def __init__(self, text: str) -> None:
        if len(text) > WHERE_CHARS_MAX:
            raise WhereUnfit(f"where has more than {WHERE_CHARS_MAX} characters")
        try:
            self._program = _engine().compile(text)
        except ValueError as error:
            raise _unfit(text, str(error)) from None
        told = self._program.references()
        bound = {*_BOUND.findall(text), *_TYPES}
        for name in told["variables"]:
            if name not in VARIABLES and name not in bound:
                raise _unknown(text, name, f"there is no {name!r}", f"a record has {', '.join(VARIABLES)}")
        for name in told["functions"]:
            if name.isidentifier() and name not in _FUNCTIONS:
                raise _unknown(text, name, f"there is no function {name!r}", _FUNCTION_HINT)
        self._made = [(name, VARIABLES[name]) for name in told["variables"] if name in VARIABLES]

    def matches(self, message: Any) -> bool | None:
        """None where it cannot be said."""
        try:
            found = self._program.execute({name: make(message) for name, make in self._made})
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException:  # A panic of the engine is no Exception, and no reason to end a search.
            return None
        return found if isinstance(found, bool) else None


def _unfit(text: str, told: str) -> WhereUnfit:
    found = _PLACE.search(told)
    line, column, what = (int(found[1]), int(found[2]), found[3]) if found else (1, 1, told[:200])
    return _at(
        line, column, what.removeprefix("Syntax error: ")[:200], "as in: value.amount > 5 && key == 'a'"
    )


def _unknown(text: str, name: str, what: str, hint: str) -> WhereUnfit:
    found = re.search(rf"(?<![\w.]){re.escape(name)}\b", text) or re.search(rf"\b{re.escape(name)}\b", text)
    before = text[: found.start()] if found else ""
    return _at(before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1, what, hint)


def _at(line: int, column: int, what: str, hint: str) -> WhereUnfit:
    return WhereUnfit(
        f"where, at {line}:{column}: {what}", hint=hint, members={"line": line, "column": column}
    )


def _engine() -> ModuleType:
    """The extension alone: the package around it brings a command line, which takes longer to load than a search."""
    package = find_spec("cel")
    for folder in (package and package.submodule_search_locations) or ():
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder) / f"cel{suffix}"
            if path.is_file():
                loader = ExtensionFileLoader("cel.cel", str(path))
                # It can be made once in a process, by whatever name.
                module = sys.modules.get(loader.name)
                if module is None:
                    module = module_from_spec(ModuleSpec(loader.name, loader, origin=str(path)))
                    loader.exec_module(module)
                    sys.modules[loader.name] = module
                return module
    raise ExtraMissing(
        "common-expression-language is not installed, and searching with an expression needs it",
        hint="pip install 'headrace[serve]'",
    )
