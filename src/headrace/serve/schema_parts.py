"""What shapes are put together from: pieces of JSON Schema."""

from __future__ import annotations

from typing import Any

__all__ = ["NUMBER", "TEXT", "TEXTS", "TRUTH", "WHOLE", "many", "or_null", "ref", "shape"]

TEXT: dict[str, Any] = {"type": "string"}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT}
WHOLE: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
TRUTH: dict[str, Any] = {"type": "boolean"}


def shape(required: dict[str, Any], optional: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Of an object."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        **more,
    }


def many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
