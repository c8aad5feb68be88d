"""Kafka's own definitions of its messages, read from the client's jar, to add the fields that a test omits.

A test names the fields that matter, by Kafka's names; ``complete`` adds every other field of the version with its
default, and omits fields that the version does not have. So one request serves all versions of an API.
"""

from __future__ import annotations

import functools
import json
import re
import zipfile
from typing import Any

from tools.jars import jar

__all__ = ["complete"]

ZERO_UUID = "AAAAAAAAAAAAAAAAAAAAAA"


@functools.cache
def definition(name: str) -> dict[str, Any]:
    with zipfile.ZipFile(jar("kafka-clients:4.3.0")) as archive:
        text = archive.read(f"common/message/{name}.json").decode()
    found: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return found


def has(versions: str | None, version: int) -> bool:
    """Whether a range such as ``3+``, ``1-4``, ``2`` or ``none`` contains the version."""
    if versions is None or versions == "none":
        return False
    low, _, high = versions.rstrip("+").partition("-")
    if versions.endswith("+"):
        return version >= int(low)
    return int(low) <= version <= int(high or low)


def default(field: dict[str, Any], version: int) -> Any:
    kind, declared = field["type"], field.get("default")
    if declared == "null" or kind == "records":
        return None
    if kind.startswith("[]"):
        return []
    if kind in ("string", "bytes"):
        return declared or ""
    if kind == "uuid":
        return ZERO_UUID
    if kind == "bool":
        return declared in (True, "true")
    if kind == "float64":
        return float(declared or 0)
    return int(str(declared or 0), 0)


def complete(name: str, version: int, given: dict[str, Any]) -> dict[str, Any]:
    kafka_definition = definition(name)
    structs = {struct["name"]: struct["fields"] for struct in kafka_definition.get("commonStructs", [])}

    def fill(fields: list[dict[str, Any]], values: dict[str, Any], path: str) -> dict[str, Any]:
        names = {field["name"][0].lower() + field["name"][1:]: field for field in fields}
        unknown = values.keys() - names.keys()
        assert not unknown, f"{path} has no field {sorted(unknown)}"
        filled: dict[str, Any] = {}
        for key, field in names.items():
            tagged = has(field.get("taggedVersions"), version)
            if not has(field["versions"], version) or (tagged and key not in values):
                continue
            kind = field["type"].removeprefix("[]")
            inner = field.get("fields") or structs.get(kind)
            value = values.get(key, default(field, version))
            if inner and isinstance(value, list):
                value = [fill(inner, item, f"{path}.{key}") for item in value]
            elif inner and isinstance(value, dict):
                value = fill(inner, value, f"{path}.{key}")
            filled[key] = value
        return filled

    return fill(kafka_definition["fields"], given, name)
