"""Encodes messages with writers that are compiled from the message shapes, one per version.

A writer is compiled when a version is first used, and then cached. One ``struct`` call writes adjacent fixed-width
fields. An invalid value (a number out of range, None where null is not allowed, invalid Unicode) raises a built-in
Python error. The writer of the struct converts it to a ``WireError`` that names the field. Callers use ``frames``,
which also supports the hand-written writers.
"""

from __future__ import annotations

import struct as layouts
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from headrace.wire.notation import Field, Struct
from headrace.wire.primitives import (
    ENCODE_ERRORS,
    FIXED,
    WireError,
    Writer,
    string_writer,
    write_count,
    write_null,
    write_uvarint,
)

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = ["struct_writer", "write"]

_NULL = layouts.Struct(">i").pack(-1)

_writers: dict[tuple[type[Message], int], Writer] = {}


def write(out: bytearray, message: Message, version: int) -> None:
    """Append the encoded message to ``out``. After an error, the content of ``out`` is undefined."""
    cls = type(message)
    writer = _writers.get((cls, version)) or _compile_writer(cls, version)
    writer(out, message)


def _compile_writer(cls: type[Message], version: int) -> Writer:
    writer = struct_writer(cls.struct_, cls.classes_, version, cls.shape_.is_flexible(version))
    _writers[cls, version] = writer
    return writer


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
                    raise ValueError("this version does not have the field")
            for step in steps:
                label, get, writer = step
                writer(out, get(message))
            if flexible:
                if tagged:
                    label = "a tagged field"
                    _write_tagged(out, message, tagged)
                else:
                    out.append(0)
        except ENCODE_ERRORS as error:
            raise WireError(
                f"cannot encode {struct.name} in version {version} at {label}: {error}"
            ) from error

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


def _fixed_writer(format_char: str) -> Writer:
    pack = layouts.Struct(">" + format_char).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _write_uuid(out: bytearray, value: Any) -> None:
    if len(value) != 16:
        raise ValueError(f"a uuid has 16 bytes, got {len(value)}")
    out += value


def _bytes_writer(flexible: bool, nullable: bool) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            write_null(out, nullable, b"\0" if flexible else _NULL)
            return
        # memoryview accepts only buffers. Without it, ``out +=`` would also accept a list of numbers.
        view = memoryview(value)
        write_count(out, view.nbytes, flexible)
        out += view

    return write


def _records_writer(flexible: bool, nullable: bool) -> Writer:
    """Like ``_bytes_writer``, but the value can also be a list of buffers, as read from the log."""
    write_bytes = _bytes_writer(flexible, nullable)

    def write(out: bytearray, value: Any) -> None:
        write_bytes(out, b"".join(value) if isinstance(value, list) else value)

    return write


def _array_writer(element: Writer, flexible: bool, nullable: bool) -> Writer:
    def write(out: bytearray, values: Any) -> None:
        if values is None:
            write_null(out, nullable, b"\0" if flexible else _NULL)
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
    # An array can be any sequence, and an empty tuple is not equal to an empty list.
    return value == default or (default == [] and value is not None and len(value) == 0)
