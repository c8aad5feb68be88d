"""Readers: functions compiled from a shape for one version, which turn bytes into messages.

A reader takes a body, a position and a budget, and returns the value and the position after it. Runs of
fields of fixed width are read by one ``struct`` call, and a struct's values are gathered in field order and
handed to its class at once.

Nothing here trusts the bytes. A length or a count is compared with what is left before anything is sliced
or allocated. The budget is the number of array elements and tagged fields that the whole message may
still hold: a few bytes can make an object of a few hundred, so bytes received are no bound for memory
used. Positions past the end show as IndexError or struct.error, text that is no UTF-8 as
UnicodeDecodeError; ``codec.decode`` turns those into the one error that callers see.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any

from headrace.wire.errors import WireError
from headrace.wire.notation import Field, Struct

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = [
    "FIXED",
    "STRING_MAX",
    "Reader",
    "allow_null",
    "read_compact_count",
    "read_count",
    "read_tagged",
    "read_uvarint",
    "spend",
    "string_reader",
    "struct_reader",
    "too_long",
]

Reader = Callable[[bytes, int, list[int]], tuple[Any, int]]

STRING_MAX = 0x7FFF

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


def read_uvarint(buf: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """An unsigned number of at most 32 bits, seven to the byte, the low ones first."""
    value = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise WireError("a varint is longer than 5 bytes")
    if value > 0xFFFFFFFF:
        raise WireError("a varint is larger than 32 bits")
    return value, pos


def struct_reader(
    struct: Struct, classes: dict[str, type[Message]], cls: type[Message], version: int, flexible: bool
) -> tuple[Reader, int]:
    """The reader of a struct in a version, and the fewest bytes that it can take."""
    template: list[Any] = []
    fresh: list[tuple[int, Callable[[], Any]]] = []
    steps: list[tuple[int | slice, Reader]] = []
    tagged: dict[int, tuple[int, Reader]] = {}
    run: list[int] = []
    run_format = ">"
    size_min = 0

    def end_run() -> None:
        nonlocal run_format
        if run:
            steps.append((slice(run[0], run[-1] + 1), _run_reader(run_format)))
            run.clear()
            run_format = ">"

    for index, field in enumerate(struct.fields):
        template.append(field.default)
        here = version in field.versions
        if not here or field.tag is not None:
            # The default stands, and one that can be changed later must be a new one each time.
            if field.default == ():
                fresh.append((index, classes[field.type]))
            elif field.default == []:
                fresh.append((index, list))
            if here and field.tag is not None:
                tagged[field.tag] = (index, field_reader(field, classes, version, flexible)[0])
            end_run()
            continue
        if field.type in FIXED and not field.is_array:
            run.append(index)
            run_format += FIXED[field.type]
            size_min += Layout(">" + FIXED[field.type]).size
            continue
        end_run()
        reader, least = field_reader(field, classes, version, flexible)
        steps.append((index, reader))
        size_min += least
    end_run()

    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        values = template.copy()
        for where, reader in steps:
            values[where], pos = reader(buf, pos, budget)
        for index, make in fresh:
            values[index] = make()
        if flexible:
            pos = read_tagged(buf, pos, budget, tagged, values)
        return cls(*values), pos

    return read, size_min + flexible


def field_reader(
    field: Field, classes: dict[str, type[Message]], version: int, flexible: bool
) -> tuple[Reader, int]:
    """The reader of one field in a version, and the fewest bytes that it can take."""
    nullable = version in field.nullable
    flexible = flexible and not field.inflexible
    if not field.is_array:
        return _value_reader(field, classes, version, flexible, nullable)
    element, least = _value_reader(field, classes, version, flexible, False)
    count = read_compact_count if flexible else read_count
    if field.type in FIXED and field.type != "uuid":
        reader = _numbers_reader(field.name, count, FIXED[field.type], least, nullable)
    else:
        reader = _array_reader(field.name, count, element, least, nullable)
    return reader, 1 if flexible else 4


def _value_reader(
    field: Field, classes: dict[str, type[Message]], version: int, flexible: bool, nullable: bool
) -> tuple[Reader, int]:
    if field.struct is not None:
        reader, least = struct_reader(field.struct, classes, classes[field.type], version, flexible)
        return (_nullable_struct_reader(reader), 1) if nullable else (reader, least)
    if field.type in FIXED:
        layout = Layout(">" + FIXED[field.type])
        return _fixed_reader(layout), layout.size
    if field.type == "string":
        return string_reader(field.name, flexible, nullable), 1 if flexible else 2
    return _bytes_reader(field.name, flexible, nullable), 1 if flexible else 4


def _run_reader(run_format: str) -> Reader:
    layout = Layout(run_format)
    unpack, size = layout.unpack_from, layout.size

    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        return unpack(buf, pos), pos + size

    return read


def _fixed_reader(layout: Layout) -> Reader:
    unpack, size = layout.unpack_from, layout.size

    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        return unpack(buf, pos)[0], pos + size

    return read


def string_reader(name: str, flexible: bool, nullable: bool) -> Reader:
    def read_compact(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size = buf[pos]
        if size < 0x80:
            pos += 1
        else:
            size, pos = read_uvarint(buf, pos)
        if size == 0:
            allow_null(name, nullable)
            return None, pos
        end = pos + size - 1
        if end > len(buf) or size > STRING_MAX + 1:
            raise too_long(name, size - 1, len(buf) - pos)
        return str(buf[pos:end], "utf-8"), end

    def read_classic(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        (size,) = _INT16(buf, pos)
        pos += 2
        if size < 0:
            allow_null(name, nullable and size == -1)
            return None, pos
        end = pos + size
        if end > len(buf):
            raise too_long(name, size, len(buf) - pos)
        return str(buf[pos:end], "utf-8"), end

    return read_compact if flexible else read_classic


def _bytes_reader(name: str, flexible: bool, nullable: bool) -> Reader:
    count = read_compact_count if flexible else read_count

    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size, pos = count(buf, pos)
        if size < 0:
            allow_null(name, nullable and size == -1)
            return None, pos
        end = pos + size
        if end > len(buf):
            raise too_long(name, size, len(buf) - pos)
        return buf[pos:end], end

    return read


def _array_reader(
    name: str, count: Callable[[bytes, int], tuple[int, int]], element: Reader, least: int, nullable: bool
) -> Reader:
    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size, pos = count(buf, pos)
        if size < 0:
            allow_null(name, nullable and size == -1)
            return None, pos
        spend(name, size, least, len(buf) - pos, budget)
        values = []
        for _ in range(size):
            value, pos = element(buf, pos, budget)
            values.append(value)
        return values, pos

    return read


def _numbers_reader(
    name: str, count: Callable[[bytes, int], tuple[int, int]], letter: str, width: int, nullable: bool
) -> Reader:
    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size, pos = count(buf, pos)
        if size < 0:
            allow_null(name, nullable and size == -1)
            return None, pos
        spend(name, size, width, len(buf) - pos, budget)
        return list(Layout(f">{size}{letter}").unpack_from(buf, pos)), pos + size * width

    return read


def _nullable_struct_reader(inner: Reader) -> Reader:
    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        # One signed byte comes before the struct: negative for null.
        return (None, pos + 1) if buf[pos] >= 0x80 else inner(buf, pos + 1, budget)

    return read


def read_tagged(
    buf: bytes, pos: int, budget: list[int], tagged: dict[int, tuple[int, Reader]], values: list[Any]
) -> int:
    """Fields that a peer may leave out or add: unknown ones are skipped, none may come twice."""
    if not buf[pos]:
        return pos + 1
    count, pos = read_uvarint(buf, pos)
    spend("tagged fields", count, 2, len(buf) - pos, budget)
    seen = set()
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        end = pos + size
        if end > len(buf):
            raise too_long(f"tag {tag}", size, len(buf) - pos)
        if tag in seen:
            raise WireError(f"tag {tag} comes twice")
        seen.add(tag)
        if tag in tagged:
            index, reader = tagged[tag]
            values[index], pos = reader(buf, pos, budget)
            if pos != end:
                raise WireError(f"tag {tag} states {size} bytes and has {size + pos - end}")
        pos = end
    return pos


_INT16 = Layout(">h").unpack_from
_INT32 = Layout(">i").unpack_from


def read_count(buf: bytes, pos: int) -> tuple[int, int]:
    return _INT32(buf, pos)[0], pos + 4


def read_compact_count(buf: bytes, pos: int) -> tuple[int, int]:
    size = buf[pos]
    if size < 0x80:
        return size - 1, pos + 1
    size, pos = read_uvarint(buf, pos)
    return size - 1, pos


def spend(name: str, count: int, least: int, left: int, budget: list[int]) -> None:
    if not 0 <= count * least <= left:
        raise WireError(f"{name}: {count} elements cannot fit in the {left} bytes that are left")
    budget[0] -= count
    if budget[0] < 0:
        raise WireError(f"{name}: more elements in one message than are allowed")


def allow_null(name: str, allowed: bool) -> None:
    if not allowed:
        raise WireError(f"{name} is null, or its length negative, which this version does not allow")


def too_long(name: str, size: int, left: int) -> WireError:
    return WireError(f"{name}: stated as {size} bytes, with {left} left")
