"""Recorded schemas: numbers, the versions that can have records, and the file for version control."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.app import App
from headrace.model.declarations import Topic
from headrace.model.schema import field_location, schema_of
from headrace.model.schema_version import (
    SchemaFile,
    SchemaVersion,
    UnreadableSchemas,
    declared_version,
    next_version,
    used_versions,
    versions_of_id,
)

from .other_schemas import Base


@dataclass(frozen=True)
class First:
    ride: str


@dataclass(frozen=True)
class Second:
    ride: str
    city: str = ""


@dataclass(frozen=True)
class Leg:
    meters: int


@dataclass(frozen=True)
class Third(Base):
    legs: list[Leg] | None
    by_city: dict[str, Leg]


def declared(schema: type, **options: Any) -> Topic:
    return App("bikes").topic("rides", schema, key="ride", **options)


def recorded(schema: type, versions: list[SchemaVersion], **ends: int) -> SchemaVersion:
    version = next_version(versions, declared(schema), topic_id="T", ends=ends)
    assert version is not None
    return version


def test_a_schema_is_recorded_once_and_a_changed_schema_gets_the_next_number() -> None:
    first = recorded(First, [])
    second = recorded(Second, [first])
    assert (first.version, second.version) == (1, 2)
    assert first.log_key != second.log_key
    for schema in (First, Second):
        assert next_version([first, second], declared(schema), topic_id="T") is None
    assert declared_version([first, second], declared(Second)) == second
    assert SchemaVersion.decode(second.encode()) == second


def test_a_changed_upcaster_is_recorded_with_the_same_number_and_key() -> None:
    first = recorded(First, [])
    upcast = declared(First, upcast=lambda value: value)
    updated = next_version([first], upcast, topic_id="T")
    assert updated is not None
    assert (updated.log_key, updated.version) == (first.log_key, 1)
    assert updated.upcast != first.upcast == ""
    assert next_version([updated], upcast, topic_id="T") is None


def test_a_topic_that_was_created_again_has_no_earlier_versions() -> None:
    first = recorded(First, [])
    assert versions_of_id([first], "OTHER") == []
    again = next_version([first], declared(First), topic_id="OTHER")
    assert again is not None
    assert again.version == 2


def test_a_later_version_without_records_does_not_constrain_the_next() -> None:
    versions = [recorded(First, [], p0=10)]
    versions.append(recorded(Second, versions, p0=15))
    third = msgspec.structs.replace(versions[1], version=3, name="Other", ends={"p0": 15})
    versions.append(third)
    assert [version.version for version in used_versions(versions, {"p0": 20})] == [1, 3]
    assert [version.version for version in used_versions(versions, {"p0": 15})] == [1]
    # The first version also describes the records before it.
    assert used_versions(versions[:1], {"p0": 10}) == versions[:1]


def test_a_record_of_another_program_is_skipped_and_a_later_kind_is_explained() -> None:
    for raw in (b"", b"{}", b"[1]", b"\xff", b"[" * 10_000):
        assert SchemaVersion.decode(raw) is None
    later = msgspec.structs.replace(
        recorded(First, []), fields=[{"name": "a", "kind": "map", "optional": False}]
    )
    with pytest.raises(UnreadableSchemas, match="version 1 of the schema of topic rides is not readable"):
        _ = later.schema
    for fields in ([{}], [{"name": 1, "kind": {}, "optional": 0}]):
        with pytest.raises(UnreadableSchemas):
            _ = msgspec.structs.replace(later, fields=fields).schema


def test_the_file_has_short_diffs_and_refuses_other_content() -> None:
    first = recorded(First, [])
    second = recorded(Second, [first])
    written = SchemaFile("bikes", [second, first]).encode()
    assert written == SchemaFile("bikes", [first, second]).encode()
    assert written.count(b"\n") > 20
    assert SchemaFile.decode(written, where="schemas.json").of("rides") == [first, second]
    for raw in (b"", b"[]", b'{"app":1}', b"\xff"):
        with pytest.raises(UnreadableSchemas, match=r"schemas\.json is not a file of recorded schemas"):
            SchemaFile.decode(raw, where="schemas.json")


def test_the_line_of_a_field_is_found_in_nested_and_inherited_classes() -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    schema = schema_of(Third)

    def line_of(path: str) -> str:
        location = field_location(schema, path)
        assert location is not None
        if location.file != __file__:
            return f"{Path(location.file).name}:{location.line}"
        return lines[location.line - 1].strip()

    assert line_of("legs") == "legs: list[Leg] | None"
    assert line_of("legs[].meters") == line_of("legs[2].meters") == "meters: int"
    assert line_of("by_city['a'].meters") == "meters: int"
    assert line_of("ride") == "other_schemas.py:10"
    assert line_of("unknown") == line_of("") == "@dataclass(frozen=True)"
    assert field_location(recorded(First, []).schema, "ride") is None
