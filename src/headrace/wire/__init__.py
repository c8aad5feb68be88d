"""Encodes and decodes the Kafka protocol, without any I/O.

A *shape* is the definition of one message: its fields, their types, and the versions that have them.

primitives  varints, counts and strings ↔ bytes; WireError
codes       the protocol's error codes
api         the APIs and their versions
notation    the text format of shapes               shapes/     the shapes, one file per API
message     builds a class from a shape             messages    all message classes, by name
readers     decode messages by their shapes         writers     encode messages by their shapes
produce     Produce, hand-written for speed         fetch       Fetch, hand-written for speed
frames      frames ↔ headers and messages
"""

from __future__ import annotations

from headrace.wire.api import Api, advertised, versions
from headrace.wire.codes import ErrorCode
from headrace.wire.frames import (
    Header,
    decode,
    decode_header,
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_response,
    encode_response_parts,
)
from headrace.wire.primitives import WireError

__all__ = [
    "Api",
    "ErrorCode",
    "Header",
    "WireError",
    "advertised",
    "decode",
    "decode_header",
    "decode_request",
    "decode_response",
    "encode",
    "encode_request",
    "encode_response",
    "encode_response_parts",
    "versions",
]
