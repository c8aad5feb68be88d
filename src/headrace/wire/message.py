"""Builds message classes from their shapes (``notation``).

A message has one attribute for each field of any version, in snake case, with the default from the shape. Construct it
with keyword arguments. Only the decoders use positional arguments. The classes of nested structs are attributes of the
message class, with their protocol names::

    m.JoinGroupResponse(members=[m.JoinGroupResponse.JoinGroupResponseMember(member_id="a")])

A message object has the fields of all versions. The encoder writes only the fields of the requested version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec

from headrace.wire.notation import Field, Shape, Struct

__all__ = ["Message", "build"]


class Message(msgspec.Struct):
    """A message of the protocol, or a struct inside one."""

    struct_: ClassVar[Struct]
    classes_: ClassVar[dict[str, type[Message]]]
    shape_: ClassVar[Shape]

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


def build(shape: Shape) -> type[Message]:
    """Build the class of a message, with the classes of its structs as attributes."""
    classes: dict[str, type[Message]] = {}
    message = _build(shape.struct, shape.struct.name, classes)
    message.shape_ = shape
    for name, cls in classes.items():
        type.__setattr__(message, name, cls)
    return message


def _build(struct: Struct, path: str, classes: dict[str, type[Message]]) -> type[Message]:
    fields: list[tuple[str, Any, Any]] = []
    for field in struct.fields:
        if field.struct is not None and field.type not in classes:
            classes[field.type] = _build(field.struct, f"{path.partition('.')[0]}.{field.type}", classes)
        fields.append((field.name, Any, _default(field, classes)))
    cls = cast(
        "type[Message]",
        msgspec.defstruct(struct.name, fields, bases=(Message,), module="headrace.wire.messages"),
    )
    cls.__qualname__ = path
    cls.struct_ = struct
    cls.classes_ = classes
    return cls


def _default(field: Field, classes: dict[str, type[Message]]) -> Any:
    if field.default == ():
        return msgspec.field(default_factory=classes[field.type])
    if field.is_array and field.default is not None:
        return msgspec.field(default_factory=list)
    return field.default
