"""The shape of a topic's values, taken from a dataclass.

A field is optional if its type allows None or if it has a default; every other field must be there. So a schema may
gain fields with defaults while old events stay readable. What cannot be told apart in JSON (a union of two types, null
and a default that is not None) or compared in SQL (a set, names that differ by case) is refused where the schema is
declared.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from headrace.model.default_text import default_from_text, default_text
from headrace.model.errors import SchemaError, ValueDoesNotFit
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.place import Place

__all__ = ["Schema", "schema_of"]

_PLAIN: dict[Any, Plain] = {
    str: Plain("text"),
    int: Plain("int"),
    float: Plain("float"),
    bool: Plain("bool"),
    datetime: Plain("time"),
    date: Plain("date"),
    bytes: Plain("bytes"),
}
_ALLOWED = (
    "str, int, float, bool, Decimal, datetime, date, bytes, an Enum of strings, a dataclass,"
    " list[...], dict[str, ...]"
)
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Schema:
    name: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        return next((one for one in self.fields if one.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.fields)


def schema_of(cls: type, *, place: Place | None = None) -> Schema:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise SchemaError(
            f"a schema must be a dataclass, and {cls!r} is none",
            place=place,
            hint="write @dataclass(frozen=True) above the class",
        )
    try:
        return Schema(cls.__name__, _fields(cls, (), 0))
    except SchemaError as error:
        # A class that was made in an interactive session has no file; its declaration may.
        error.place = error.place or place
        raise


def _fields(cls: type, path: tuple[str, ...], depth: int) -> tuple[Field, ...]:
    if depth > _DEEPEST:
        raise SchemaError(
            f"{'.'.join(path)} nests deeper than {_DEEPEST} levels",
            place=_place(cls),
            hint="a schema cannot hold itself",
        )
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise SchemaError(
            f"{cls.__name__}: {error}", place=_place(cls), hint="a schema's types must be known in its module"
        ) from error
    declared = dataclasses.fields(cls)
    if not declared:
        raise SchemaError(f"{cls.__name__} has no fields", place=_place(cls))
    names = [one.name for one in declared]
    twins = [name for name in names if [other.lower() for other in names].count(name.lower()) > 1]
    if twins:
        raise SchemaError(
            f"{cls.__name__} has the fields {' and '.join(twins)}, which differ by case only",
            place=_place(cls),
            hint="SQL does not tell them apart: rename one",
        )
    return tuple(_field(cls, one, hints[one.name], (*path, one.name), depth) for one in declared)


def _field(
    cls: type, declared: dataclasses.Field[Any], hint: Any, path: tuple[str, ...], depth: int
) -> Field:
    inner, nullable = _without_none(hint)
    kind = _kind(cls, inner, path, depth)
    if declared.default is not dataclasses.MISSING:
        default = declared.default
    elif declared.default_factory is not dataclasses.MISSING:
        default = declared.default_factory()
    else:
        return Field(declared.name, kind, nullable)
    return Field(declared.name, kind, True, _default(cls, declared.name, kind, nullable, default))


def _default(cls: type, name: str, kind: Kind, nullable: bool, default: Any) -> Any:
    """As it will be read: an enum's value, a time in UTC."""
    where = f"{cls.__name__}.{name}"
    if default is None:
        if not nullable:
            raise SchemaError(
                f"{where} has the default None, which its type does not allow",
                place=_place(cls),
                hint="give it the type ... | None",
            )
        return None
    if isinstance(kind, Record):
        raise SchemaError(
            f"{where} is a dataclass with a default",
            place=_place(cls),
            hint="give it the type ... | None and the default None",
        )
    if nullable:
        raise SchemaError(
            f"{where} may be None, and has another default",
            place=_place(cls),
            hint="an absent field and a null are one: make the default None, or take None out of the type",
        )
    try:
        return default_from_text(kind, default_text(kind, default))
    except ValueDoesNotFit as error:
        raise SchemaError(
            f"{where} has a default that does not fit: {error.message}", place=_place(cls)
        ) from None


def _without_none(hint: Any) -> tuple[Any, bool]:
    """The type without None, and whether None was in it; a union of two other types stays a union."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [one for one in typing.get_args(hint) if one is not type(None)]
        if len(rest) == 1:
            return rest[0], len(rest) < len(typing.get_args(hint))
    return hint, False


def _kind(cls: type, hint: Any, path: tuple[str, ...], depth: int) -> Kind:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        digits = next((one for one in arguments[1:] if isinstance(one, Digits)), None)
        if digits is not None and arguments[0] is Decimal:
            return _checked(cls, digits, path)
        return _kind(cls, arguments[0], path, depth)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is Decimal:
        return Digits()
    if origin in (list, tuple) and _is_list(origin, arguments):
        inner, optional = _without_none(arguments[0])
        return Many(_kind(cls, inner, path, depth + 1), optional)
    if origin is dict and arguments[0] is str:
        inner, optional = _without_none(arguments[1])
        return Named(_kind(cls, inner, path, depth + 1), optional)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if not list(hint) or not all(isinstance(one.value, str) for one in hint):
            raise SchemaError(
                f"{cls.__name__}.{path[-1]}: {hint.__name__} must have values, and all of them strings",
                place=_place(cls),
                hint=f"make it class {hint.__name__}(StrEnum)",
            )
        return Choice(tuple(one.value for one in hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Record(_fields(hint, path, depth + 1))
    raise SchemaError(
        f"{cls.__name__}.{path[-1]} has the type {_named(hint)}, which events cannot hold",
        place=_place(cls),
        hint=f"use {_ALLOWED}; each may be ... | None",
    )


def _is_list(origin: Any, arguments: tuple[Any, ...]) -> bool:
    return origin is list or (len(arguments) == 2 and arguments[1] is Ellipsis)


def _checked(cls: type, digits: Digits, path: tuple[str, ...]) -> Digits:
    if not (0 < digits.precision <= 38 and 0 <= digits.scale <= digits.precision):
        raise SchemaError(
            f"{cls.__name__}.{path[-1]}: {digits} is not possible",
            place=_place(cls),
            hint="at most 38 digits, and no more behind the point than there are",
        )
    return digits


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)  # type: ignore[return-value]


def _place(cls: type) -> Place | None:
    try:
        file = inspect.getsourcefile(cls)
        return Place(file, inspect.getsourcelines(cls)[1]) if file else None
    except (OSError, TypeError):
        return None
