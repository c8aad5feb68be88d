"""Decodes messages with readers that are compiled from the message shapes, one per version.

A reader is compiled when a version is first used, and then cached. One ``struct`` call reads adjacent fixed-width
fields. The values of a struct are passed to its class together, in field order. Callers use ``frames``, which also
supports the hand-written readers.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.wire.notation import Field, Struct
from headrace.wire.primitives import (
    ELEMENTS_MAX,
    FIXED,
    MALFORMED,
    Buffer,
    Reader,
    WireError,
    check_null_allowed,
    malformed,
    read_compact_count,
    read_count,
    read_tagged,
    reserve_elements,
    string_reader,
    too_long,
)

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = ["decode", "struct_reader"]

M = TypeVar("M", bound="Message")

_readers: dict[tuple[type[Message], int], Reader] = {}


def decode(cls: type[M], version: int, buf: Buffer, pos: int = 0, *, elements_max: int = ELEMENTS_MAX) -> M:
    """Decode the message in the buffer from ``pos`` on.

    Extra bytes after a message raise ``WireError``, except after a request. Apache Kafka ignores them there too:
    librdkafka 2.16 sends three extra bytes with Metadata version 13. A buffer other than ``bytes`` is copied first.
    """
    read = _readers.get((cls, version)) or _compile_reader(cls, version)
    if not isinstance(buf, bytes):
        buf, pos = bytes(buf[pos:]), 0
    try:
        message, end = read(buf, pos, [elements_max])
        if end != len(buf) and not cls.__name__.endswith("Request"):
            raise WireError(f"{len(buf) - end} extra bytes at the end")
    except MALFORMED as error:
        raise malformed(cls.__name__, version, error) from error
    return message  # type: ignore[no-any-return]


def _compile_reader(cls: type[Message], version: int) -> Reader:
    flexible = cls.shape_.is_flexible(version)
    reader, _ = struct_reader(cls.struct_, cls.classes_, cls, version, flexible)
    _readers[cls, version] = reader
    return reader


def struct_reader(
    struct: Struct, classes: dict[str, type[Message]], cls: type[Message], version: int, flexible: bool
) -> tuple[Reader, int]:
    """Build the reader of a struct in a version; returns it with the minimum number of bytes that it reads."""
    template: list[Any] = []
    new_default: list[tuple[int, Callable[[], Any]]] = []
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
        is_present = version in field.versions
        if not is_present or field.tag is not None:
            # The field has its default. A mutable default must be a new object in each message.
            if field.default == ():
                new_default.append((index, classes[field.type]))
            elif field.default == []:
                new_default.append((index, list))
            if is_present and field.tag is not None:
                tagged[field.tag] = (index, field_reader(field, classes, version, flexible)[0])
            end_run()
            continue
        if field.type in FIXED and not field.is_array:
            run.append(index)
            run_format += FIXED[field.type]
            size_min += Layout(">" + FIXED[field.type]).size
            continue
        end_run()
        reader, field_size_min = field_reader(field, classes, version, flexible)
        steps.append((index, reader))
        size_min += field_size_min
    end_run()

    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        values = template.copy()
        for value_index, reader in steps:
            values[value_index], pos = reader(buf, pos, budget)
        for index, new in new_default:
            values[index] = new()
        if flexible:
            pos = read_tagged(buf, pos, budget, tagged, values)
        return cls(*values), pos

    return read, size_min + flexible


def field_reader(
    field: Field, classes: dict[str, type[Message]], version: int, flexible: bool
) -> tuple[Reader, int]:
    """Build the reader of one field in a version; returns it with the minimum number of bytes that it reads."""
    nullable = version in field.nullable
    flexible = flexible and not field.inflexible
    if not field.is_array:
        return _value_reader(field, classes, version, flexible, nullable)
    element, size_min = _value_reader(field, classes, version, flexible, False)
    count = read_compact_count if flexible else read_count
    if field.type in FIXED and field.type != "uuid":
        reader = _numbers_reader(field.name, count, FIXED[field.type], size_min, nullable)
    else:
        reader = _array_reader(field.name, count, element, size_min, nullable)
    return reader, 1 if flexible else 4


def _value_reader(
    field: Field, classes: dict[str, type[Message]], version: int, flexible: bool, nullable: bool
) -> tuple[Reader, int]:
    if field.struct is not None:
        reader, size_min = struct_reader(field.struct, classes, classes[field.type], version, flexible)
        return (_nullable_struct_reader(reader), 1) if nullable else (reader, size_min)
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


def _bytes_reader(name: str, flexible: bool, nullable: bool) -> Reader:
    count = read_compact_count if flexible else read_count

    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size, pos = count(buf, pos)
        if size < 0:
            check_null_allowed(name, nullable and size == -1)
            return None, pos
        end = pos + size
        if end > len(buf):
            raise too_long(name, size, len(buf) - pos)
        return buf[pos:end], end

    return read


def _array_reader(
    name: str, count: Callable[[bytes, int], tuple[int, int]], element: Reader, size_min: int, nullable: bool
) -> Reader:
    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size, pos = count(buf, pos)
        if size < 0:
            check_null_allowed(name, nullable and size == -1)
            return None, pos
        reserve_elements(name, size, size_min, len(buf) - pos, budget)
        values = []
        for _ in range(size):
            value, pos = element(buf, pos, budget)
            values.append(value)
        return values, pos

    return read


def _numbers_reader(
    name: str, count: Callable[[bytes, int], tuple[int, int]], format_char: str, width: int, nullable: bool
) -> Reader:
    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        size, pos = count(buf, pos)
        if size < 0:
            check_null_allowed(name, nullable and size == -1)
            return None, pos
        reserve_elements(name, size, width, len(buf) - pos, budget)
        return list(Layout(f">{size}{format_char}").unpack_from(buf, pos)), pos + size * width

    return read


def _nullable_struct_reader(inner: Reader) -> Reader:
    def read(buf: bytes, pos: int, budget: list[int]) -> tuple[Any, int]:
        # One signed byte precedes the struct. It is negative for null.
        return (None, pos + 1) if buf[pos] >= 0x80 else inner(buf, pos + 1, budget)

    return read
