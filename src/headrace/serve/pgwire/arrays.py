"""Arrays of PostgreSQL's protocol, of one dimension: as text ``{a,"b c",NULL}``, or as binary.

binary    dimensions (4), whether there are nulls (4), type of the elements (4), count (4), first place (4);
          then each element as length (4; -1 for a null) and bytes
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.serve.sql.errors import SqlUnfit

__all__ = ["ARRAYS", "ELEMENTS", "array_binary", "array_text", "elements_of_binary", "elements_of_text"]

ARRAYS = {
    16: 1000, 17: 1001, 19: 1003, 20: 1016, 21: 1005, 23: 1007, 25: 1009, 26: 1028, 114: 199, 700: 1021, 701: 1022,
    1042: 1014, 1043: 1015, 1082: 1182, 1083: 1183, 1114: 1115, 1184: 1185, 1700: 1231, 2950: 2951,
}  # fmt: skip
"""The type of an array, by that of its elements."""
ELEMENTS = {array: element for element, array in ARRAYS.items()}
_HEAD = struct.Struct(">iii")
_PLAIN = re.compile(r"[^\s{}\",\\]+")
_ELEMENT = re.compile(r'(?:\s*"((?:[^"\\]|\\.)*)"\s*|((?:[^{}",\\]|\\.)*))([,}])', re.S)
_ESCAPE = re.compile(r"\\(.)", re.S)


def elements_of_text(text: str) -> list[str | None]:
    text = text.strip()
    if text.replace(" ", "") == "{}":
        return []
    found: list[str | None] = []
    at = 1 if text.startswith("{") else len(text)
    while at < len(text):
        one = _ELEMENT.match(text, at)
        if one is None:
            break
        at = one.end()
        if one[1] is not None:
            found.append(_ESCAPE.sub(r"\1", one[1]))
        else:
            word = one[2].strip()
            if not word:
                break
            found.append(None if word.lower() == "null" else _ESCAPE.sub(r"\1", word))
        if one[3] == "}" and at == len(text):
            return found
    raise SqlUnfit("a parameter is no array of one dimension", hint="as in {1,2,3}")


def elements_of_binary(value: bytes) -> Iterator[bytes | None]:
    """The caller knows the type."""
    try:
        dimensions, _, _ = _HEAD.unpack_from(value, 0)
        if dimensions == 0:
            return
        count, _ = struct.unpack_from(">ii", value, _HEAD.size)
        at = _HEAD.size + 8
        if dimensions != 1 or not 0 <= count * 4 <= len(value) - at:
            raise SqlUnfit(f"a parameter is an array of {dimensions} dimensions, and one is taken")
        for _ in range(count):
            (length,) = struct.unpack_from(">i", value, at)
            at += 4
            if length > len(value) - at:
                raise SqlUnfit("an array ends in the midst of an element")
            yield None if length < 0 else value[at : at + length]
            at += max(0, length)
    except struct.error:
        raise SqlUnfit("an array ends in the midst") from None


def array_text(values: Sequence[Any], make: Callable[[Any], bytes]) -> bytes:
    return b"{" + b",".join(b"NULL" if one is None else _told(make(one).decode()) for one in values) + b"}"


def _told(text: str) -> bytes:
    if _PLAIN.fullmatch(text) and text.lower() != "null":
        return text.encode()
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.encode()


def array_binary(values: Sequence[Any], element: int, make: Callable[[Any], bytes]) -> bytes:
    nulls = int(any(one is None for one in values))
    if not values:
        return _HEAD.pack(0, 0, element)
    parts = [_HEAD.pack(1, nulls, element), struct.pack(">ii", len(values), 1)]
    for one in values:
        made = b"" if one is None else make(one)
        parts += [struct.pack(">i", -1 if one is None else len(made)), made]
    return b"".join(parts)
