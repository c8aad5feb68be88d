"""Kafka's own definitions of its messages, read from the client's jar, to fill in what a test leaves out.

A test names the fields it cares about, by Kafka's names; ``complete`` adds every other field that the version has,
with its default, and leaves out the ones that the version does not have. So one request serves all versions of an API.
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
    kind, stated = field["type"], field.get("default")
    if stated == "null" or kind == "records":
        return None
    if kind.startswith("[]"):
        return []
    if kind in ("string", "bytes"):
        return stated or ""
    if kind == "uuid":
        return ZERO_UUID
    if kind == "bool":
        return stated in (True, "true")
    if kind == "float64":
        return float(stated or 0)
    return int(str(stated or 0), 0)


def complete(name: str, version: int, given: dict[str, Any]) -> dict[str, Any]:
    whole = definition(name)
    structs = {struct["name"]: struct["fields"] for struct in whole.get("commonStructs", [])}

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

    return fill(whole["fields"], given, name)
