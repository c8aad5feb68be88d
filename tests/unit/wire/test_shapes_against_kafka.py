"""The shapes match Kafka's own definitions, for every field of every message in every version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults.protocol.message_samples import NAMES, OTHERS
from headrace.wire import Api, messages, notation, versions

from .jar import definition

SHAPES = Path(notation.__file__).parent / "shapes"


def span(text: str | None, versions: range) -> range:
    """Parse Kafka's notation of versions: ``none``, ``3``, ``1-4``, ``3+``."""
    if text is None or text == "none":
        return range(0)
    low, _, high = text.partition("-")
    if low.endswith("+"):
        return range(max(int(low[:-1]), versions.start), versions.stop)
    return range(max(int(low), versions.start), min(int(high or low) + 1, versions.stop))


def kafka_valid(name: str) -> range:
    return span(definition(name)["validVersions"], range(2**15))


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def kafka_default(field: dict[str, Any]) -> object:
    kind, declared = field["type"], field.get("default")
    if declared == "null" or kind == "records":
        return None
    if kind.startswith("[]"):
        return []
    if kind in ("string", "bytes", "uuid"):
        assert not declared
        return {"string": "", "bytes": b"", "uuid": bytes(16)}[kind]
    if kind == "bool":
        return str(declared).lower() == "true"
    if kind[0].isupper():
        return ()
    return int(str(declared or 0), 0)


def kafka_fields(name: str, version: int) -> list[Any]:
    """The fields of the version as nested lists, in the same form as ``our_fields``."""
    kafka_definition = definition(name)
    valid = kafka_valid(name)
    structs = {struct["name"]: struct["fields"] for struct in kafka_definition.get("commonStructs", [])}

    def remember(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            if "fields" in field:
                structs[field["type"].removeprefix("[]")] = field["fields"]
                remember(field["fields"])

    remember(kafka_definition["fields"])

    def describe(fields: list[dict[str, Any]]) -> list[Any]:
        described = []
        for field in fields:
            if version not in span(field["versions"], valid):
                continue
            kind = field["type"].removeprefix("[]")
            tagged = version in span(field.get("taggedVersions"), valid)
            described.append(
                {
                    "name": snake(field["name"]),
                    "type": kind,
                    "array": field["type"].startswith("[]"),
                    "nullable": version in span(field.get("nullableVersions"), valid),
                    "default": kafka_default(field),
                    "tag": field["tag"] if tagged else None,
                    "ignorable": field.get("ignorable", False),
                    "inflexible": field.get("flexibleVersions") == "none",
                    "fields": describe(structs[kind]) if kind in structs else None,
                }
            )
        return described

    return describe(kafka_definition["fields"])


def our_fields(struct: notation.Struct, version: int) -> list[Any]:
    return [
        {
            "name": field.name,
            "type": field.type,
            "array": field.is_array,
            "nullable": version in field.nullable,
            "default": field.default,
            "tag": field.tag,
            "ignorable": field.ignorable,
            "inflexible": field.inflexible,
            "fields": our_fields(field.struct, version) if field.struct else None,
        }
        for field in struct.fields
        if version in field.versions
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_has_the_fields_of_kafkas_definition_in_every_version(name: str) -> None:
    shape = messages.shape_of(name)
    assert shape.versions == kafka_valid(name)
    for version in shape.versions:
        assert our_fields(shape.struct, version) == kafka_fields(name, version), f"version {version}"


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_is_flexible_from_the_same_version_as_kafkas_definition(name: str) -> None:
    shape = messages.shape_of(name)
    flexible = [version for version in shape.versions if version >= shape.flexible_from]
    assert flexible == list(span(definition(name)["flexibleVersions"], shape.versions))


@pytest.mark.parametrize("api", Api)
def test_an_api_has_kafkas_number_and_stable_versions(api: Api) -> None:
    request, response = (definition(f"{api.title}{kind}") for kind in ("Request", "Response"))
    assert request["apiKey"] == response["apiKey"] == api == notation.load(api.name.lower()).api_key
    valid = kafka_valid(f"{api.title}Request")
    unstable = request.get("latestVersionUnstable", False)
    assert versions(api) == (valid.start, valid.stop - 1 - unstable)


def test_every_shape_file_belongs_to_an_api_or_to_the_two_other_formats() -> None:
    stems = {path.stem for path in SHAPES.glob("*.shape")}
    assert stems == {api.name.lower() for api in Api} | {"consumer_protocol", "header"}
    others = [*notation.load("consumer_protocol").messages, *notation.load("header").messages]
    assert sorted(others) == sorted(OTHERS)


@pytest.mark.parametrize("name", NAMES)
def test_every_array_element_has_at_least_one_byte(name: str) -> None:
    """Otherwise a count could not be checked against the remaining bytes of the frame."""

    def check(struct: notation.Struct, version: int, flexible: bool) -> None:
        for field in struct.fields:
            if version in field.versions and field.struct is not None:
                present = [inner for inner in field.struct.fields if version in inner.versions]
                assert flexible or present, f"{field.type} in version {version}"
                check(field.struct, version, flexible)

    shape = messages.shape_of(name)
    for version in shape.versions:
        check(shape.struct, version, version >= shape.flexible_from)
