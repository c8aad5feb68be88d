"""Parses the records of a write request and encodes them for the log. Also defines the result of a write.

The body of a request is one of:

{"records": [{"value": {"order_id": "o1", ...}}, ...]}      or a single record without the list
{"value": {...}, "headers": {"source": "till 3"}}           header values are strings
{"key": {"product_id": "p1"}, "value": null}                deletes a row of a table
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.model.codec.codec import codec_of
from headrace.model.codec.json_text import NumberText, parse
from headrace.model.codec.strict_decode import fit_fields
from headrace.model.declarations import Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.serve.errors import InvalidRequest
from headrace.serve.query.position_token import PositionToken, TopicPosition

__all__ = [
    "NewRecord",
    "NewRecords",
    "WriteRecord",
    "WriteResult",
    "WrittenDocument",
    "add_traceparent",
    "parse_records",
]

_HEADERS_MAX = 20
_HEADER_CHARS_MAX = 1_000
_RESERVED_PREFIX = "__headrace"
_TRACEPARENT = "traceparent"


@dataclass(frozen=True, slots=True)
class WriteRecord:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = -1
    """A negative number means that the key determines the partition."""


class NewRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: dict[str, Any] | None
    key: dict[str, Any] | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET


class NewRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    records: Annotated[list[NewRecord], Meta(min_length=1, max_length=1_000)]


class WrittenRecord(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class WrittenDocument(msgspec.Struct, frozen=True):
    topic: str
    records: list[WrittenRecord]
    token: Annotated[str, Meta(description="Pass it as `after`: the read then reflects these records.")]


class WriteResult(msgspec.Struct, frozen=True):
    """The partitions and offsets of the written records. It is stored with the Idempotency-Key of the request."""

    topic: str
    topic_id: str
    offsets: list[tuple[int, int]] = msgspec.field(name="places")
    """Partition and offset of each record, in the order of the request."""

    @property
    def position_token(self) -> str:
        ends: dict[int, int] = {}
        for partition, offset in self.offsets:
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        position = TopicPosition(self.topic_id, dict(sorted(ends.items())))
        return PositionToken.of({self.topic: position}).encode()

    def document(self) -> WrittenDocument:
        return WrittenDocument(
            self.topic,
            [WrittenRecord(partition, offset) for partition, offset in self.offsets],
            self.position_token,
        )


def add_traceparent(records: list[WriteRecord], traceparent: bytes | None) -> list[WriteRecord]:
    """Add a traceparent header to each record that does not have one."""
    if traceparent is None:
        return records
    return [
        record
        if any(name == _TRACEPARENT for name, _ in record.headers)
        else replace(record, headers=(*record.headers, (_TRACEPARENT, traceparent)))
        for record in records
    ]


def parse_records(topic: Topic, body: bytes, records_max: int) -> list[WriteRecord]:
    """Return all records of the body. Raise for the first record that does not match the topic's schema."""
    try:
        document = parse(body)
    except ValueDoesNotFit as error:
        raise InvalidRequest(f"the body is not valid: {error.message}") from None
    is_list = isinstance(document, dict) and set(document) == {"records"}
    records = document["records"] if is_list else [document]
    if not isinstance(records, list) or not 0 < len(records) <= records_max:
        raise InvalidRequest(f"records must be a list of 1 to {records_max} records")
    parsed = []
    for index, record in enumerate(records):
        try:
            parsed.append(_record(topic, record))
        except ValueDoesNotFit as error:
            where = f"records[{index}]: " if len(records) > 1 else ""
            raise InvalidRequest(
                f"{where}{error.message}",
                hint=f"list the fields of topic {topic.name!r}: GET /v1/topics/{topic.name}",
            ) from None
    return parsed


def _record(topic: Topic, record: Any) -> WriteRecord:
    if not isinstance(record, dict):
        raise ValueDoesNotFit("a record must be an object with a value")
    unknown = sorted(set(record) - {"value", "key", "headers"})
    if unknown or "value" not in record:
        raise ValueDoesNotFit(
            f"unknown field {unknown[0]!a} in a record" if unknown else 'a record must have the field "value"'
        )
    headers = _headers(record.get("headers"))
    value = record["value"]
    if value is None:
        return WriteRecord(_key(topic, record.get("key")), None, headers)
    if "key" in record:
        raise ValueDoesNotFit("the key is derived from the value; send a key only to delete a row")
    assert topic.schema is not None
    if isinstance(value, dict):
        unknown_field = next((name for name in value if topic.schema.field(name) is None), None)
        if unknown_field is not None:
            raise ValueDoesNotFit(f"the schema has no field {unknown_field!a}").inside("value")
    try:
        key, raw = topic.encode(fit_fields(topic.schema.fields, value))
    except ValueDoesNotFit as error:
        raise error.inside("value") from None
    return WriteRecord(key, raw, headers)


def _key(topic: Topic, key: Any) -> bytes:
    if topic.kind != "table":
        raise ValueDoesNotFit(
            "null would delete a row, but the topic has events, not table rows", path="value"
        )
    assert topic.schema is not None
    fields = tuple(field for name in topic.key if (field := topic.schema.field(name)) is not None)
    if not isinstance(key, dict) or set(key) != set(topic.key):
        raise ValueDoesNotFit(f"to delete a row, send an object with {', '.join(topic.key)}", path="key")
    try:
        return codec_of(topic.schema).key(topic.key).encode(fit_fields(fields, key))
    except ValueDoesNotFit as error:
        raise error.inside("key") from None


def _headers(headers: Any) -> tuple[tuple[str, bytes], ...]:
    if headers is None:
        return ()
    if not isinstance(headers, dict) or len(headers) > _HEADERS_MAX:
        raise ValueDoesNotFit(f"must be an object with at most {_HEADERS_MAX} string values", path="headers")
    encoded = []
    for name, text in headers.items():
        is_text = isinstance(text, str) and not isinstance(text, NumberText)
        if (
            not is_text
            or not name
            or len(name) + len(text) > _HEADER_CHARS_MAX
            or name.startswith(_RESERVED_PREFIX)
        ):
            raise ValueDoesNotFit(
                f"{name[:60]!a}: the value must be a string; name and value may have at most {_HEADER_CHARS_MAX}"
                f" characters together; the name must not be empty or start with {_RESERVED_PREFIX}",
                path="headers",
            )
        encoded.append((name, text.encode()))
    return tuple(encoded)
