"""Messages between the server and a SQL worker process. Each message is a length, followed by MessagePack.

The worker runs untrusted SQL. The server therefore decodes its messages with a fixed schema, never with pickle, and
limits their size.
"""

from __future__ import annotations

import struct

import msgspec

from headrace.stores.position import Position
from headrace.stores.registry import StoreLocation

__all__ = [
    "LENGTH_BYTES",
    "Column",
    "Failed",
    "ListedView",
    "ParseRequest",
    "Parsed",
    "QueryRequest",
    "QueryResponse",
    "Reply",
    "Request",
    "Source",
    "SourcePosition",
    "TableRef",
    "decode_length",
    "decode_reply",
    "decode_request",
    "encode_frame",
]

_LENGTH = struct.Struct(">Q")
LENGTH_BYTES = _LENGTH.size
Parameter = None | bool | int | float | str


class Source(msgspec.Struct, frozen=True):
    """A view and the location of its store."""

    name: str
    """The name in the statement."""
    view: str
    store: StoreLocation
    words: str = ""
    """If not empty, read only the rows that match these words in the view's full-text index."""


class TableRef(msgspec.Struct, frozen=True):
    """A table in a statement: the name of a view, or ``search('view', 'words')``."""

    name: str
    words: str = ""
    """The words of a search; empty for a plain table name."""


class ParseRequest(msgspec.Struct, frozen=True, tag=True):
    sql: str
    catalogue: bool = False
    """Whether the statement may read the system tables."""


class ListedView(msgspec.Struct, frozen=True):
    """A view for the system tables, with its encoded ``ViewSchema``."""

    name: str
    schema: str


class QueryRequest(msgspec.Struct, frozen=True, tag=True):
    sql: str
    parameters: list[Parameter | list[str | None]]
    """Arrays are allowed only if ``result_format`` is ``rows``."""
    sources: list[Source]
    time_s: float
    rows_max: int
    bytes_max: int
    memory_bytes: int
    result_format: str = "json"
    """``json``, ``arrow``, or ``rows`` (messages of PostgreSQL's protocol)."""
    binary: list[bool] = []
    """With ``rows``: whether to encode columns in binary format. One value for all columns, or one for each."""
    listed: list[ListedView] = []
    """With ``rows``: the views that the system tables list."""
    user: str = ""
    database: str = ""
    parameter_types: list[int] = []
    describe_only: bool = False
    """With ``rows``: return the columns but no rows."""

    @property
    def is_pgwire(self) -> bool:
        return self.result_format == "rows"


class Parsed(msgspec.Struct, frozen=True, tag=True):
    names: list[str]
    """The tables that the statement names, in the statement's spelling."""
    bound: list[str]
    """Names that a WITH clause defines."""
    words: list[TableRef]
    catalogue: bool
    parameters: int


class Column(msgspec.Struct, frozen=True):
    name: str
    type: str
    oid: int = 0


class SourcePosition(msgspec.Struct, frozen=True):
    """The position at which a view was read."""

    name: str
    position: Position
    schema: str


class QueryResponse(msgspec.Struct, frozen=True, tag=True):
    columns: list[Column]
    positions: list[SourcePosition]
    rows: int
    body: bytes
    must_restart: bool = False
    """Whether the server must replace the process, because it uses too much memory."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    status: int
    code: str
    message: str
    detail: str = ""
    hint: str = ""
    retriable: bool = False


Request = ParseRequest | QueryRequest
Reply = Parsed | QueryResponse | Failed

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode_frame(message: Request | Reply) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_length(head: bytes) -> int:
    return int(_LENGTH.unpack(head)[0])


def decode_request(body: bytes) -> Request:
    return _requests.decode(body)


def decode_reply(body: bytes) -> Reply:
    return _replies.decode(body)
