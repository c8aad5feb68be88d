"""The text format of message shapes, and its parser.

A shape defines the fields of a Kafka message. Each API has one file under ``shapes/``, which is read when the first
message of that API is needed. A file has an ``api`` line and two messages, or standalone messages::

    api 9 OffsetFetch                                    the API's number and name
    request 1-10 flexible 6+                             all versions; those with varint lengths and tagged fields
      group_id        string                        1-7  a field: name, type, the versions that have it
      topics          [OffsetFetchRequestTopic]?2+  1-7  an array, null allowed from version 2 on
        name          string                             the struct's fields, indented by two more spaces
        partitions    [int32]
      require_stable  bool                          7+

    api 22 InitProducerId unstable 6                     version 6 may still change, so it is not advertised
    message ConsumerProtocolAssignment 0-3               a message that does not belong to an API

Versions are written ``4-7``, ``4`` or ``4+``. A field without versions is in all versions of its message. ``?`` after a
type allows null in all versions of the field; ``?2+`` allows null from version 2 on. A struct is defined where it is
first used. Later uses refer to it by name. These options can follow the versions:

    = -1          the default, if it is not zero, false or empty (null for records)
    tag 0         the field is sent as a tagged field, and only if it does not have the default value
    ignorable     the value is omitted in versions without the field; without this option that is an error
    inflexible    the field has a fixed-width length even in flexible versions (the client id in the header)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from headrace.wire.primitives import WireError

__all__ = ["PRIMITIVES", "Field", "Shape", "Shapes", "Struct", "load", "parse"]

PRIMITIVES = frozenset(
    {"bool", "int8", "int16", "uint16", "int32", "int64", "float64", "string", "uuid", "bytes", "records"}
)
_NEVER = range(0)
_SHAPES = Path(__file__).parent / "shapes"


class Struct(NamedTuple):
    name: str
    fields: tuple[Field, ...]


class Field(NamedTuple):
    """One line of a shape. ``default`` is None for null, [] for an array, and () for a struct with its defaults."""

    name: str
    type: str
    is_array: bool
    versions: range
    nullable: range
    default: object
    tag: int | None
    ignorable: bool
    inflexible: bool
    struct: Struct | None


class Shape(NamedTuple):
    """A message: its fields, its versions, and the first flexible version (one past the last if none is flexible)."""

    struct: Struct
    versions: range
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        """Whether the version has varint lengths and tagged fields; raises ``WireError`` for an unknown version."""
        if version not in self.versions:
            raise WireError(
                f"unknown version {version} of {self.struct.name}",
                hint=f"use a version from {self.versions.start} to {self.versions.stop - 1}",
            )
        return version >= self.flexible_from


class Shapes(NamedTuple):
    """The content of one file. ``api_key`` is -1 for messages that do not belong to an API."""

    api_key: int
    stable: range
    messages: dict[str, Shape]


@cache
def load(stem: str) -> Shapes:
    """Load one file. ``stem`` is the file name without ``.shape``."""
    return parse((_SHAPES / f"{stem}.shape").read_text("ascii"))


def parse(text: str) -> Shapes:
    api_key, api_name, unstable = -1, "", None
    blocks: list[tuple[list[str], list[tuple[int, list[str]]]]] = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if line.startswith(" "):
            depth = (len(line) - len(line.lstrip())) // 2
            blocks[-1][1].append((depth, words))
        elif words[0] == "api":
            api_key, api_name = int(words[1]), words[2]
            unstable = int(words[4]) if words[3:4] == ["unstable"] else None
        elif words[0] == "message":
            blocks.append((words[1:], []))
        else:
            blocks.append(([api_name + words[0].capitalize(), *words[1:]], []))
    messages = {words[0]: _message(words, lines) for words, lines in blocks}
    versions = next(iter(messages.values())).versions
    stable = versions if unstable is None else range(versions.start, unstable)
    return Shapes(api_key, stable, messages)


def _message(words: list[str], lines: list[tuple[int, list[str]]]) -> Shape:
    versions = _versions(words[1], range(2**15))
    flexible = _versions(words[3], versions) if words[2:3] == ["flexible"] else _NEVER
    fields = _fields(lines[::-1], 1, versions, {})
    return Shape(Struct(words[0], fields), versions, flexible.start if flexible else versions.stop)


def _fields(
    lines: list[tuple[int, list[str]]], depth: int, within: range, structs: dict[str, Struct]
) -> tuple[Field, ...]:
    """Parse one struct and its nested structs. ``lines`` is in reverse order; parsed lines are removed from its end."""
    fields = []
    while lines and lines[-1][0] == depth:
        words = lines.pop()[1]
        name, type_, null, nulls = words[0], *words[1].partition("?")
        is_array = type_.startswith("[")
        type_ = type_.strip("[]")
        rest = words[2:]
        versions = _versions(rest.pop(0), within) if rest and rest[0][0].isdigit() else within
        nullable = _NEVER if not null else _versions(nulls, within) if nulls else versions
        if type_ not in PRIMITIVES and type_ not in structs:
            structs[type_] = Struct(type_, _fields(lines, depth + 1, within, structs))
        struct = structs.get(type_)
        default = _default(type_, is_array, rest[rest.index("=") + 1] if "=" in rest else None)
        tag = int(rest[rest.index("tag") + 1]) if "tag" in rest else None
        ignorable, inflexible = "ignorable" in rest, "inflexible" in rest
        fields.append(
            Field(name, type_, is_array, versions, nullable, default, tag, ignorable, inflexible, struct)
        )
    return tuple(fields)


def _versions(text: str, within: range) -> range:
    first, _, last = text.partition("-")
    if first.endswith("+"):
        return range(int(first[:-1]), within.stop)
    return range(int(first), int(last or first) + 1)


def _default(type_: str, is_array: bool, text: str | None) -> object:
    if text == "null" or type_ == "records":
        return None
    if is_array:
        return []
    if type_ == "string":
        return ""
    if type_ == "bytes":
        return b""
    if type_ == "uuid":
        return bytes(16)
    if type_ == "bool":
        return text == "true"
    if type_ == "float64":
        return float(text or 0)
    return int(text or "0", 0) if type_ in PRIMITIVES else ()
