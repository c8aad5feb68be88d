"""The schema of a topic's values: created from a dataclass, and converted to and from JSON.

A field is optional if its type allows None or if it has a default; every other field is required. So a schema can gain
fields with defaults while old events remain readable. A declaration is rejected if JSON could not distinguish its
values (a union of two types, or None together with another default). It is also rejected if SQL could not handle it
(a set, or names that differ only by case).

The log and the stores record schemas as JSON, because otherwise only Spark would know the schema of a flow's output.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import re
import textwrap
import types
import typing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from headrace.model.codec.encode import default_from_text, default_text
from headrace.model.errors import SchemaError, SourceLocation, ValueDoesNotFit
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar

__all__ = ["Schema", "field_location", "fields_from_json", "fields_to_json", "schema_of"]

_SCALARS: dict[Any, Scalar] = {
    str: Scalar("text"),
    int: Scalar("int"),
    float: Scalar("float"),
    bool: Scalar("bool"),
    datetime: Scalar("time"),
    date: Scalar("date"),
    bytes: Scalar("bytes"),
}
_ALLOWED = (
    "str, int, float, bool, Decimal, datetime, date, bytes, an Enum of strings, a dataclass,"
    " list[...], dict[str, ...]"
)
_DEPTH_MAX = 32


@dataclass(frozen=True, slots=True)
class Schema:
    name: str
    fields: tuple[Field, ...]
    source: type | None = dataclasses.field(default=None, compare=False, repr=False)
    """The dataclass; None if the schema was read from the log or is that of a flow's rows."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the dataclass, which a worker of Spark may be unable to import."""
        return Schema, (self.name, self.fields)

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


def schema_of(cls: type, *, location: SourceLocation | None = None) -> Schema:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise SchemaError(
            f"a schema must be a dataclass, and {cls!r} is not",
            location=location,
            hint="add @dataclass(frozen=True) above the class",
        )
    try:
        return Schema(cls.__name__, _fields(cls, (), 0), cls)
    except SchemaError as error:
        # A class from an interactive session has no file, but the declaration that uses it can have a file.
        error.location = error.location or location
        raise


def _fields(cls: type, path: tuple[str, ...], depth: int) -> tuple[Field, ...]:
    if depth > _DEPTH_MAX:
        raise SchemaError(
            f"{'.'.join(path)} nests deeper than {_DEPTH_MAX} levels",
            location=_location(cls),
            hint="a schema cannot contain itself",
        )
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise SchemaError(
            f"{cls.__name__}: {error}",
            location=_location(cls),
            hint="define or import every type of the schema in the schema's module",
        ) from error
    declared = dataclasses.fields(cls)
    if not declared:
        raise SchemaError(f"{cls.__name__} has no fields", location=_location(cls))
    names = [member.name for member in declared]
    names_in_conflict = [name for name in names if [other.lower() for other in names].count(name.lower()) > 1]
    if names_in_conflict:
        raise SchemaError(
            f"{cls.__name__} has the fields {' and '.join(names_in_conflict)}, which differ only by case",
            location=_location(cls),
            hint="SQL ignores case: rename one of the fields",
        )
    return tuple(_field(cls, member, hints[member.name], (*path, member.name), depth) for member in declared)


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
    """Return the default in the form that a reader gets: an enum as its value, a time in UTC."""
    where = f"{cls.__name__}.{name}"
    if default is None:
        if not nullable:
            raise SchemaError(
                f"{where} has the default None, which its type does not allow",
                location=_location(cls),
                hint="use the type ... | None",
            )
        return None
    if isinstance(kind, Record):
        raise SchemaError(
            f"{where} is a dataclass with a default",
            location=_location(cls),
            hint="use the type ... | None and the default None",
        )
    if nullable:
        raise SchemaError(
            f"{where} allows None but has another default",
            location=_location(cls),
            hint="absent and null mean the same: set the default to None, or remove None from the type",
        )
    try:
        return default_from_text(kind, default_text(kind, default))
    except ValueDoesNotFit as error:
        raise SchemaError(
            f"{where} has a default that does not fit: {error.message}", location=_location(cls)
        ) from None


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type without None, and whether the type allowed None. A union of several other types is returned
    unchanged.
    """
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        types_without_none = [argument for argument in typing.get_args(hint) if argument is not type(None)]
        if len(types_without_none) == 1:
            return types_without_none[0], len(types_without_none) < len(typing.get_args(hint))
    return hint, False


def _kind(cls: type, hint: Any, path: tuple[str, ...], depth: int) -> Kind:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        digits = next((argument for argument in arguments[1:] if isinstance(argument, Digits)), None)
        if digits is not None and arguments[0] is Decimal:
            return _checked_digits(cls, digits, path)
        return _kind(cls, arguments[0], path, depth)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hint is Decimal:
        return Digits()
    if origin in (list, tuple) and _is_list(origin, arguments):
        inner, optional = _without_none(arguments[0])
        return List(_kind(cls, inner, path, depth + 1), optional)
    if origin is dict and arguments[0] is str:
        inner, optional = _without_none(arguments[1])
        return Map(_kind(cls, inner, path, depth + 1), optional)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if not list(hint) or not all(isinstance(member.value, str) for member in hint):
            raise SchemaError(
                f"{cls.__name__}.{path[-1]}: the enum {hint.__name__} must have members, all with string values",
                location=_location(cls),
                hint=f"declare class {hint.__name__}(StrEnum)",
            )
        return Enum(tuple(member.value for member in hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Record(_fields(hint, path, depth + 1))
    raise SchemaError(
        f"{cls.__name__}.{path[-1]} has the type {_type_name(hint)}, which a schema does not support",
        location=_location(cls),
        hint=f"use {_ALLOWED}; each may be ... | None",
    )


def _is_list(origin: Any, arguments: tuple[Any, ...]) -> bool:
    return origin is list or (len(arguments) == 2 and arguments[1] is Ellipsis)


def _checked_digits(cls: type, digits: Digits, path: tuple[str, ...]) -> Digits:
    if not (0 < digits.precision <= 38 and 0 <= digits.scale <= digits.precision):
        raise SchemaError(
            f"{cls.__name__}.{path[-1]}: {digits} is invalid",
            location=_location(cls),
            hint="precision is 1 to 38 digits, scale is 0 to precision",
        )
    return digits


def _type_name(hint: Any) -> str:
    return getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)  # type: ignore[return-value]


def _location(cls: type) -> SourceLocation | None:
    try:
        file = inspect.getsourcefile(cls)
        return SourceLocation(file, inspect.getsourcelines(cls)[1]) if file else None
    except (OSError, TypeError):
        return None


def field_location(schema: Schema, path: str) -> SourceLocation | None:
    """Return the line that declares a field, such as ``items[].price``; None if the schema has no source. If the
    field's line is unknown, return the line of the class that has it.
    """
    cls, location = schema.source, None
    for name in re.sub(r"\[.*?\]", "", path).split("."):
        owner = _owner(cls, name)
        if owner is None:
            break
        location = _field_lines(owner).get(name) or _location(owner)
        cls = _nested_class(typing.get_type_hints(owner, include_extras=True)[name])
    return location or (_location(schema.source) if schema.source else None)


def _owner(cls: type | None, name: str) -> type | None:
    """Return the class, among a dataclass and its bases, that declares the field."""
    bases = () if cls is None else cls.__mro__
    return next((base for base in bases if name in inspect.get_annotations(base)), None)


@functools.lru_cache(maxsize=256)
def _field_lines(cls: type) -> dict[str, SourceLocation]:
    """Return the lines of the fields that the class itself declares; empty if its source is unknown."""
    location = _location(cls)
    if location is None:
        return {}
    try:
        [body] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        ast.unparse(statement.target): SourceLocation(location.file, location.line + statement.lineno - 1)
        for statement in (body.body if isinstance(body, ast.ClassDef) else ())
        if isinstance(statement, ast.AnnAssign)
    }


def _nested_class(hint: Any) -> type | None:
    """Return the dataclass in a type such as ``list[Item] | None``."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next(filter(None, map(_nested_class, typing.get_args(hint))), None)


def fields_to_json(fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "kind": _kind_to_json(field.kind), "optional": field.optional}
        | ({} if field.default is None else {"default": default_text(field.kind, field.default)})
        for field in fields
    ]


def fields_from_json(document: list[dict[str, Any]]) -> tuple[Field, ...]:
    return tuple(map(_field_from_json, document))


def _field_from_json(document: dict[str, Any]) -> Field:
    kind = _kind_from_json(document["kind"])
    text = document.get("default")
    return Field(
        document["name"], kind, document["optional"], None if text is None else default_from_text(kind, text)
    )


def _kind_to_json(kind: Kind) -> Any:
    match kind:
        case Scalar(name):
            return name
        case Digits(precision, scale):
            return {"digits": [precision, scale]}
        case Enum(values):
            return {"choice": list(values)}
        case List(of, optional):
            return {"many": _kind_to_json(of), "optional": optional}
        case Map(of, optional):
            return {"named": _kind_to_json(of), "optional": optional}
        case Record(fields):
            return {"record": fields_to_json(fields)}


def _kind_from_json(document: Any) -> Kind:
    match document:
        case "text" | "int" | "float" | "bool" | "time" | "date" | "bytes":
            return Scalar(document)
        case {"digits": [precision, scale]}:
            return Digits(precision, scale)
        case {"choice": values}:
            return Enum(tuple(values))
        case {"many": of, "optional": optional}:
            return List(_kind_from_json(of), optional)
        case {"named": of, "optional": optional}:
            return Map(_kind_from_json(of), optional)
        case {"record": fields}:
            return Record(fields_from_json(fields))
    raise SchemaError(
        f"this release does not know the field kind {document!r}",
        location=None,
        hint="run the release that wrote the schema, or a later release",
    )
