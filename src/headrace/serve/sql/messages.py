"""What the server and a process that answers SQL say to each other: length, then MessagePack.

The process runs what strangers write, so nothing of it is believed beyond its shape: no pickles, and a bound for each
message.
"""

from __future__ import annotations

import struct

import msgspec

from headrace.views.position import Position

__all__ = [
    "LENGTH_BYTES",
    "Answered",
    "Column",
    "Failed",
    "Listed",
    "Parsed",
    "Reply",
    "Request",
    "Source",
    "Stood",
    "ToAnswer",
    "ToParse",
    "Words",
    "framed",
    "length_of",
    "read_reply",
    "read_request",
]

_LENGTH = struct.Struct(">Q")
LENGTH_BYTES = _LENGTH.size
Parameter = None | bool | int | float | str


class Source(msgspec.Struct, frozen=True):
    """A view, and where it is."""

    name: str
    """What the statement calls it."""
    view: str
    kind: str
    """Of its store."""
    place: str
    """A path, or an address, which may name a variable of the environment."""
    under: str = ""
    """The schema, or the prefix of keys."""
    words: str = ""
    """Only rows that have these, of a full-text index."""

    @property
    def store(self) -> str:
        """Equal for what is read in one transaction."""
        alone = self.view if self.kind == "redis" else ""
        return f"{self.kind}\0{self.place}\0{self.under}\0{alone}"


class Words(msgspec.Struct, frozen=True):
    """``search('view', 'words')`` of a statement."""

    name: str
    words: str


class ToParse(msgspec.Struct, frozen=True, tag=True):
    sql: str
    catalogue: bool = False
    """Whether the system's tables may be asked for."""


class Listed(msgspec.Struct, frozen=True):
    """A view for the catalogue: its columns, as ``Shape`` tells them."""

    name: str
    shape: str


class ToAnswer(msgspec.Struct, frozen=True, tag=True):
    sql: str
    parameters: list[Parameter | list[str | None]]
    """Arrays only with ``rows``."""
    sources: list[Source]
    time_s: float
    rows_max: int
    bytes_max: int
    memory_bytes: int
    form: str = "json"
    """``json``, ``arrow``, or ``rows`` of the PostgreSQL protocol."""
    binary: list[bool] = []
    """With ``rows``: which columns are wanted so; one for all, or one for each."""
    listed: list[Listed] = []
    """With ``rows``: what the catalogue shows."""
    user: str = ""
    database: str = ""
    parameter_types: list[int] = []
    looks: bool = False
    """With ``rows``: whether only the columns are asked for, and no row."""

    @property
    def wire(self) -> bool:
        return self.form == "rows"


class Parsed(msgspec.Struct, frozen=True, tag=True):
    names: list[str]
    """Tables of the statement, as it spells them."""
    bound: list[str]
    """Names that the statement makes itself, with WITH."""
    words: list[Words]
    catalogue: bool
    parameters: int


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str
    oid: int = 0


class Stood(msgspec.Struct, frozen=True):
    """Where a view stood whose rows were read."""

    name: str
    position: Position
    shape: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    columns: list[Column]
    stood: list[Stood]
    rows: int
    body: bytes
    tired: bool = False
    """Whether the process has grown so much that another should take its place."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    status: int
    code: str
    message: str
    detail: str = ""
    hint: str = ""
    retriable: bool = False


Request = ToParse | ToAnswer
Reply = Parsed | Answered | Failed

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def framed(message: Request | Reply) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(head: bytes) -> int:
    return int(_LENGTH.unpack(head)[0])


def read_request(body: bytes) -> Request:
    return _requests.decode(body)


def read_reply(body: bytes) -> Reply:
    return _replies.decode(body)
