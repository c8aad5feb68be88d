"""Records as they come in a request, made into what the log holds, all of them or none.

{"records": [{"value": {"order_id": "o1", ...}}, ...]}      or one of them by itself
{"value": {...}, "headers": {"source": "till 3"}}           headers are texts
{"key": {"product_id": "p1"}, "value": null}                deletes a row, in a table
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headrace.model.errors import ValueDoesNotFit
from headrace.model.fitting import fit_fields
from headrace.model.json_text import NumberText, parse
from headrace.model.topic import Topic
from headrace.model.values import codec_of
from headrace.serve.errors import RequestUnfit

__all__ = ["Incoming", "incoming", "traced"]

_HEADERS_MAX = 20
_HEADER_CHARS_MAX = 1_000
_OURS = "__headrace"
_TRACEPARENT = "traceparent"


@dataclass(frozen=True, slots=True)
class Incoming:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int = -1
    """Below 0 where the key decides."""


def traced(records: list[Incoming], traceparent: bytes | None) -> list[Incoming]:
    """What a record's own headers say comes first."""
    if traceparent is None:
        return records
    return [
        one
        if any(name == _TRACEPARENT for name, _ in one.headers)
        else replace(one, headers=(*one.headers, (_TRACEPARENT, traceparent)))
        for one in records
    ]


def incoming(topic: Topic, body: bytes, records_max: int) -> list[Incoming]:
    try:
        found = parse(body)
    except ValueDoesNotFit as error:
        raise RequestUnfit(f"the body: {error.message}") from None
    several = isinstance(found, dict) and set(found) == {"records"}
    records = found["records"] if several else [found]
    if not isinstance(records, list) or not 0 < len(records) <= records_max:
        raise RequestUnfit(f"records must be a list of 1 to {records_max} records")
    made = []
    for number, one in enumerate(records):
        try:
            made.append(_record(topic, one))
        except ValueDoesNotFit as error:
            where = f"records[{number}]: " if len(records) > 1 else ""
            raise RequestUnfit(
                f"{where}{error.message}",
                hint=f"the fields of topic {topic.name!r}: GET /v1/topics/{topic.name}",
            ) from None
    return made


def _record(topic: Topic, found: Any) -> Incoming:
    if not isinstance(found, dict):
        raise ValueDoesNotFit("a record is an object with a value")
    unknown = sorted(set(found) - {"value", "key", "headers"})
    if unknown or "value" not in found:
        raise ValueDoesNotFit(f"a record has no {unknown[0]!a}" if unknown else "a record needs a value")
    headers = _headers(found.get("headers"))
    value = found["value"]
    if value is None:
        return Incoming(_key(topic, found.get("key")), None, headers)
    if "key" in found:
        raise ValueDoesNotFit("the key follows from the value; it is named to delete only")
    assert topic.schema is not None
    if isinstance(value, dict):
        strange = next((name for name in value if topic.schema.field(name) is None), None)
        if strange is not None:
            raise ValueDoesNotFit(f"the schema has no field {strange!a}").inside("value")
    try:
        key, raw = topic.encode(fit_fields(topic.schema.fields, value))
    except ValueDoesNotFit as error:
        raise error.inside("value") from None
    return Incoming(key, raw, headers)


def _key(topic: Topic, found: Any) -> bytes:
    if topic.kind != "table":
        raise ValueDoesNotFit("null, and events are never deleted: only rows of a table are", path="value")
    assert topic.schema is not None
    fields = tuple(one for name in topic.key if (one := topic.schema.field(name)) is not None)
    if not isinstance(found, dict) or set(found) != set(topic.key):
        raise ValueDoesNotFit(f"an object of {', '.join(topic.key)} says what is deleted", path="key")
    try:
        return codec_of(topic.schema).key(topic.key).encode(fit_fields(fields, found))
    except ValueDoesNotFit as error:
        raise error.inside("key") from None


def _headers(found: Any) -> tuple[tuple[str, bytes], ...]:
    if found is None:
        return ()
    if not isinstance(found, dict) or len(found) > _HEADERS_MAX:
        raise ValueDoesNotFit(f"an object of at most {_HEADERS_MAX} texts", path="headers")
    made = []
    for name, text in found.items():
        fits = isinstance(text, str) and not isinstance(text, NumberText)
        if not fits or not name or len(name) + len(text) > _HEADER_CHARS_MAX or name.startswith(_OURS):
            raise ValueDoesNotFit(
                f"{name[:60]!a}: a text of at most {_HEADER_CHARS_MAX} characters, and no name of ours",
                path="headers",
            )
        made.append((name, text.encode()))
    return tuple(made)
