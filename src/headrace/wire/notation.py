"""The notation in which message shapes are written down, and its parser.

Kafka's messages are data here: one text file per API under ``shapes/``, read when the first message of
that API is needed. A file has an ``api`` line and two messages, or messages that stand alone::

    api 9 OffsetFetch                                    the API's number and name
    request 1-10 flexible 6+                             its versions, and those with varint lengths and tags
      group_id        string                        1-7  a field: name, type, the versions that have it
      topics          [OffsetFetchRequestTopic]?2+  1-7  an array, null allowed from version 2 on
        name          string                             the struct's fields, one step further in
        partitions    [int32]
      require_stable  bool                          7+

    api 22 InitProducerId unstable 6                     version 6 may still change, so it is not advertised
    message ConsumerProtocolAssignment 0-3               a message of no API

Versions are ``4-7``, ``4`` or ``4+``; a field without any is in all versions that have its struct. ``?``
after a type allows null in all of the field's versions, ``?2+`` in some. A struct is spelled out where it
is first used and named afterwards. After the versions may follow

    = -1          the default, if it is not zero, false, empty (or null, for records)
    tag 0         sent as a tagged field, and only when it is not the default
    ignorable     a value that the version at hand cannot carry is left out; without this it is an error
    inflexible    keeps the lengths of old also in flexible versions (the header's client id)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

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
    """One line of a shape. ``default`` is None for null, [] for an array, and () for a struct of defaults."""

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
    """A message: its fields, its versions, and the first flexible one (past the last if there is none)."""

    struct: Struct
    versions: range
    flexible_from: int


class Shapes(NamedTuple):
    """What one file holds. ``api_key`` is -1 for messages of no API."""

    api_key: int
    stable: range
    messages: dict[str, Shape]


@cache
def load(stem: str) -> Shapes:
    """The shapes of one file, by its name without the suffix."""
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
    """Takes the lines of one struct, and of those within it, off the end of the reversed list."""
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
