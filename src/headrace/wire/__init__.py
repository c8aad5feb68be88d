"""The Kafka protocol, without any I/O: bytes in, messages out, and back.

errors      WireError
codes       the protocol's error numbers
api         the APIs and their versions
notation    the notation of message shapes          shapes/     the shapes
message     classes built from shapes               messages    all of them, by name
reading     shape and version → reader              writing     shape and version → writer
codec       messages ↔ bytes                        frames      headers and sizes
produce     Produce by hand, records not copied     fetch       Fetch by hand, records not copied
"""

from __future__ import annotations

from headrace.wire.api import Api, advertised, versions
from headrace.wire.codec import decode, encode
from headrace.wire.codes import ErrorCode
from headrace.wire.errors import WireError
from headrace.wire.frames import (
    Header,
    decode_header,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_response_parts,
)

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
