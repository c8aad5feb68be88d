"""Messages to bytes and back, in any version of theirs, by readers and writers compiled from the shapes.

They are compiled when a version is first used, and kept. Callers use ``codec``, which knows what goes by
hand.
"""

from __future__ import annotations

import struct as layouts
from typing import TYPE_CHECKING, TypeVar

from headrace.wire.errors import WireError
from headrace.wire.reading import Reader, struct_reader
from headrace.wire.writing import Writer, struct_writer

if TYPE_CHECKING:
    from headrace.wire.message import Message

__all__ = ["ELEMENTS_MAX", "MALFORMED", "Buffer", "decode", "malformed", "write"]

Buffer = bytes | bytearray | memoryview
M = TypeVar("M", bound="Message")

# Array elements and tagged fields in one request. An element may come from a few bytes and becomes an object of up
# to about 300, so this keeps what hostile bytes can blow up to within 16 MB. No client of ours comes near it.
ELEMENTS_MAX = 50_000

_readers: dict[tuple[type[Message], int], Reader] = {}
_writers: dict[tuple[type[Message], int], Writer] = {}


# What reading shows when bytes end too early, lie about a length, or are no text.
MALFORMED = (WireError, IndexError, layouts.error, UnicodeDecodeError)


def decode(cls: type[M], version: int, buf: Buffer, pos: int = 0, *, elements_max: int = ELEMENTS_MAX) -> M:
    """The message that the buffer holds from ``pos`` on. Bytes behind it are a WireError, but not in a request:
    librdkafka 2.16 sends three too many with Metadata 13, and Apache Kafka ignores what it does not know.

    Bytes are read in place; another kind of buffer is copied first.
    """
    read = _readers.get((cls, version)) or _compile_reader(cls, version)
    if not isinstance(buf, bytes):
        buf, pos = bytes(buf[pos:]), 0
    try:
        message, end = read(buf, pos, [elements_max])
        if end != len(buf) and not cls.__name__.endswith("Request"):
            raise WireError(f"{len(buf) - end} bytes too many")
    except MALFORMED as error:
        raise malformed(cls.__name__, version, error) from error
    return message  # type: ignore[no-any-return]


def malformed(name: str, version: int, error: Exception) -> WireError:
    if isinstance(error, WireError):
        reason = error.message
    elif isinstance(error, UnicodeDecodeError):
        reason = f"text is not UTF-8 ({error.reason})"
    else:
        reason = "it ends too early"
    return WireError(f"malformed {name} of version {version}: {reason}")


def write(out: bytearray, message: Message, version: int) -> None:
    """Appends the message's bytes. After an error the bytearray's content is of no use."""
    cls = type(message)
    writer = _writers.get((cls, version)) or _compile_writer(cls, version)
    writer(out, message)


def _compile_reader(cls: type[Message], version: int) -> Reader:
    flexible = _check(cls, version)
    reader, _ = struct_reader(cls.struct_, cls.classes_, cls, version, flexible)
    _readers[cls, version] = reader
    return reader


def _compile_writer(cls: type[Message], version: int) -> Writer:
    flexible = _check(cls, version)
    writer = struct_writer(cls.struct_, cls.classes_, version, flexible)
    _writers[cls, version] = writer
    return writer


def _check(cls: type[Message], version: int) -> bool:
    shape = cls.shape_
    if version not in shape.versions:
        raise WireError(
            f"{cls.__name__} has no version {version}",
            hint=f"versions {shape.versions.start} to {shape.versions.stop - 1} are known",
        )
    return version >= shape.flexible_from
