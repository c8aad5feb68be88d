"""One record as it is written by hand: bytes as text or in base64, for topics that no schema is known of.

{"key": {"text": "k1"}, "value": {"base64": "AP8="}, "headers": [{"name": "source", "text": "by hand"}], "partition": 2}
"""

from __future__ import annotations

import base64
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.serve.errors import RequestUnfit
from headrace.serve.writes.incoming import Incoming

__all__ = ["new_record"]

_HEADERS_MAX = 100


class Bytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    base64: str | None = None


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    text: str | None = None
    base64: str | None = None


class NewRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: Bytes | None
    key: Bytes | None = None
    headers: Annotated[list[Header], Meta(max_length=_HEADERS_MAX)] = []
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None


_decode = msgspec.json.Decoder(NewRecord).decode


def new_record(body: bytes, partitions: int) -> Incoming:
    try:
        found = _decode(body)
        headers = tuple((one.name, _bytes(one, "a header") or b"") for one in found.headers)
        key, value = _bytes(found.key, "key"), _bytes(found.value, "value")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestUnfit(f"the body: {error}") from None
    if found.partition is not None and found.partition >= partitions:
        raise RequestUnfit(
            f"there is no partition {found.partition}", hint=f"there are {partitions}, counted from 0"
        )
    return Incoming(key, value, headers, -1 if found.partition is None else found.partition)


def _bytes(found: Bytes | Header | None, what: str) -> bytes | None:
    if found is None:
        return None
    if (found.text is None) == (found.base64 is None):
        raise RequestUnfit(f"{what} must have text or base64")
    if found.text is not None:
        return found.text.encode()
    try:
        return base64.b64decode(found.base64 or "", validate=True)
    except ValueError:
        raise RequestUnfit(f"{what} is not in base64") from None
