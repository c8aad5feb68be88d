"""Writers: functions compiled from a shape for one version, which append a message's bytes to a bytearray.

A writer takes the bytearray and the value. Runs of fields of fixed width are written by one ``struct``
call. What a field cannot hold shows as one of Python's own errors (a number out of range, None where null
is not allowed, text that is no Unicode); the struct around it turns that into an error that names the
field.
"""

from __future__ import annotations

import struct as layouts
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from headrace.wire.errors import WireError
from headrace.wire.notation import Field, Struct
from headrace.wire.reading import FIXED, STRING_MAX

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = ["MISFITS", "Writer", "string_writer", "struct_writer", "write_count", "write_uvarint"]

Writer = Callable[[bytearray, Any], None]

MISFITS = (layouts.error, TypeError, AttributeError, ValueError, OverflowError)


def write_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def struct_writer(struct: Struct, classes: dict[str, type[Message]], version: int, flexible: bool) -> Writer:
    steps: list[tuple[str, Callable[[Any], Any], Writer]] = []
    missing: list[tuple[str, Any]] = []
    tagged: list[tuple[int, str, Any, Writer]] = []
    run: list[Field] = []

    def end_run() -> None:
        if run:
            names = [field.name for field in run]
            steps.append((", ".join(names), attrgetter(*names), _run_writer(run)))
            run.clear()

    for field in struct.fields:
        default = classes[field.type]() if field.default == () else field.default
        if version not in field.versions:
            if not field.ignorable:
                missing.append((field.name, default))
        elif field.tag is not None:
            tagged.append((field.tag, field.name, default, field_writer(field, classes, version, flexible)))
        elif field.type in FIXED and field.type != "uuid" and not field.is_array:
            run.append(field)
        else:
            end_run()
            steps.append(
                (field.name, attrgetter(field.name), field_writer(field, classes, version, flexible))
            )
    end_run()
    tagged.sort()

    def write(out: bytearray, message: Any) -> None:
        label = ""
        try:
            for label, default in missing:
                if not _is_default(getattr(message, label), default):
                    raise ValueError("this version has no such field")
            for step in steps:
                label, get, writer = step
                writer(out, get(message))
            if flexible:
                if tagged:
                    label = "a tagged field"
                    _write_tagged(out, message, tagged)
                else:
                    out.append(0)
        except MISFITS as error:
            raise WireError(f"{struct.name} does not fit version {version} at {label}: {error}") from error

    return write


def field_writer(field: Field, classes: dict[str, type[Message]], version: int, flexible: bool) -> Writer:
    nullable = version in field.nullable
    flexible = flexible and not field.inflexible
    if not field.is_array:
        return _value_writer(field, classes, version, flexible, nullable)
    element = _value_writer(field, classes, version, flexible, False)
    return _array_writer(element, flexible, nullable)


def _value_writer(
    field: Field, classes: dict[str, type[Message]], version: int, flexible: bool, nullable: bool
) -> Writer:
    if field.struct is not None:
        writer = struct_writer(field.struct, classes, version, flexible)
        return _nullable_struct_writer(writer) if nullable else writer
    if field.type == "uuid":
        return _write_uuid
    if field.type in FIXED:
        return _fixed_writer(FIXED[field.type])
    if field.type == "string":
        return string_writer(flexible, nullable)
    return (
        _records_writer(flexible, nullable) if field.type == "records" else _bytes_writer(flexible, nullable)
    )


def _run_writer(run: list[Field]) -> Writer:
    if len(run) == 1:
        return _fixed_writer(FIXED[run[0].type])
    pack = layouts.Struct(">" + "".join(FIXED[field.type] for field in run)).pack

    def write(out: bytearray, values: Any) -> None:
        out += pack(*values)

    return write


def _fixed_writer(letter: str) -> Writer:
    pack = layouts.Struct(">" + letter).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _write_uuid(out: bytearray, value: Any) -> None:
    if len(value) != 16:
        raise ValueError(f"a uuid of {len(value)} bytes")
    out += value


def string_writer(flexible: bool, nullable: bool) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            _write_null(out, nullable, b"\0" if flexible else b"\xff\xff")
            return
        text = value.encode()
        size = len(text)
        if size > STRING_MAX:
            raise ValueError(f"text of {size} bytes, {STRING_MAX} allowed")
        if not flexible:
            out += _INT16(size)
        elif size < 0x7F:
            out.append(size + 1)
        else:
            write_uvarint(out, size + 1)
        out += text

    return write


def _bytes_writer(flexible: bool, nullable: bool) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            _write_null(out, nullable, b"\0" if flexible else _NULL)
            return
        # A bytearray would also take a list of numbers; a view takes nothing but a buffer.
        view = memoryview(value)
        write_count(out, view.nbytes, flexible)
        out += view

    return write


def _records_writer(flexible: bool, nullable: bool) -> Writer:
    """As bytes, but records may also come as several buffers, as they were read from the log."""
    write_bytes = _bytes_writer(flexible, nullable)

    def write(out: bytearray, value: Any) -> None:
        write_bytes(out, b"".join(value) if isinstance(value, list) else value)

    return write


def _array_writer(element: Writer, flexible: bool, nullable: bool) -> Writer:
    def write(out: bytearray, values: Any) -> None:
        if values is None:
            _write_null(out, nullable, b"\0" if flexible else _NULL)
            return
        write_count(out, len(values), flexible)
        for value in values:
            element(out, value)

    return write


def _nullable_struct_writer(inner: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            inner(out, value)

    return write


def _write_tagged(out: bytearray, message: Any, tagged: list[tuple[int, str, Any, Writer]]) -> None:
    fields = []
    for tag, name, default, writer in tagged:
        value = getattr(message, name)
        if not _is_default(value, default):
            body = bytearray()
            writer(body, value)
            fields.append((tag, body))
    write_uvarint(out, len(fields))
    for tag, body in fields:
        write_uvarint(out, tag)
        write_uvarint(out, len(body))
        out += body


def _is_default(value: Any, default: Any) -> bool:
    # An array may be any sequence, and an empty tuple is not equal to an empty list.
    return value == default or (default == [] and value is not None and len(value) == 0)


_INT16 = layouts.Struct(">h").pack
_INT32 = layouts.Struct(">i").pack
_NULL = _INT32(-1)


def write_count(out: bytearray, count: int, flexible: bool) -> None:
    if not flexible:
        out += _INT32(count)
    elif count < 0x7F:
        out.append(count + 1)
    else:
        write_uvarint(out, count + 1)


def _write_null(out: bytearray, allowed: bool, null: bytes) -> None:
    if not allowed:
        raise ValueError("null is not allowed here")
    out += null
