"""A schema as JSON, for the log: a flow's output has one that only Spark knows until it is written down."""

from __future__ import annotations

from typing import Any

from headrace.model.default_text import default_from_text, default_text
from headrace.model.errors import SchemaError
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema

__all__ = ["fields_from_json", "fields_to_json", "schema_from_json"]


def fields_to_json(fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "kind": _kind_to_json(one.kind), "optional": one.optional}
        | ({} if one.default is None else {"default": default_text(one.kind, one.default)})
        for one in fields
    ]


def fields_from_json(told: list[dict[str, Any]]) -> tuple[Field, ...]:
    return tuple(map(_field_from_json, told))


def schema_from_json(name: str, told: list[dict[str, Any]]) -> Schema:
    return Schema(name, fields_from_json(told))


def _field_from_json(told: dict[str, Any]) -> Field:
    kind = _kind_from_json(told["kind"])
    text = told.get("default")
    return Field(
        told["name"], kind, told["optional"], None if text is None else default_from_text(kind, text)
    )


def _kind_to_json(kind: Kind) -> Any:
    match kind:
        case Plain(name):
            return name
        case Digits(precision, scale):
            return {"digits": [precision, scale]}
        case Choice(values):
            return {"choice": list(values)}
        case Many(of, optional):
            return {"many": _kind_to_json(of), "optional": optional}
        case Named(of, optional):
            return {"named": _kind_to_json(of), "optional": optional}
        case Record(fields):
            return {"record": fields_to_json(fields)}


def _kind_from_json(told: Any) -> Kind:
    match told:
        case "text" | "int" | "float" | "bool" | "time" | "date" | "bytes":
            return Plain(told)
        case {"digits": [precision, scale]}:
            return Digits(precision, scale)
        case {"choice": values}:
            return Choice(tuple(values))
        case {"many": of, "optional": optional}:
            return Many(_kind_from_json(of), optional)
        case {"named": of, "optional": optional}:
            return Named(_kind_from_json(of), optional)
        case {"record": fields}:
            return Record(fields_from_json(fields))
    raise SchemaError(
        f"{told!r} is not a kind of field that this release knows",
        place=None,
        hint="run the release that wrote it, or a later one",
    )
